"""The time to the first token, turn by turn, as SVG that reads on light and on dark ground."""
from state import State

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 64, 150, 56, 52
SERIES = (("ours", "chat_cold", "kvcache, cold", "#3b82c4", "6 4"),
          ("llama-server f16", "chat_cold", "llama-server, cold", "#d9822b", "6 4"),
          ("llama-server f16", "chat_warm", "llama-server, cached", "#d9822b", ""),
          ("ours", "chat_warm", "kvcache, cached", "#3b82c4", ""))


def ticks(least: float, most: float) -> list[float]:
    """1, 2, 5, 10 and so on, from the last below the least to the first above the most."""
    made = [digit * 10.0 ** power for power in range(-2, 6) for digit in (1, 2, 5)]
    begin = max((t for t in made if t <= least), default=made[0])
    end = min((t for t in made if t >= most), default=made[-1])
    return [t for t in made if begin <= t <= end]


def first_token_by_turn(state: State, dtype: str = "f32", threads: int = 2) -> str:
    from math import log10
    lines = [(label, colour, dash, [state.median(f"{who}/{dtype}/{what}_turn_{turn:02}/t{threads}") for turn in range(1, 11)])
             for who, what, label, colour, dash in SERIES]
    lines = [line for line in lines if all(line[3])]
    values = [value for line in lines for value in line[3]]
    marks = ticks(min(values), max(values))
    x = lambda turn: LEFT + (turn - 1) * (WIDTH - LEFT - RIGHT) / 9
    y = lambda ms: TOP + (HEIGHT - TOP - BOTTOM) * (log10(marks[-1]) - log10(ms)) / (log10(marks[-1]) - log10(marks[0]))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
           'font-size="13" role="img">',
           "<title>Time to the first token by turn</title>",
           "<style>text{fill:#57606a}.grid{stroke:#8b949e;stroke-opacity:.3}.head{font-size:15px;font-weight:600}"
           "@media(prefers-color-scheme:dark){text{fill:#9da7b3}}</style>",
           f'<text class="head" x="{LEFT}" y="24">Time to the first token of a turn, ms (log scale)</text>',
           f'<text x="{LEFT}" y="42">SmolLM2-135M shape, {dtype.upper()} weights, {threads} threads</text>']
    for mark in marks:
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:,.0f}</text>')
    for turn in range(1, 11):
        out.append(f'<text x="{x(turn):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{turn}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">turn</text>')
    label_at = []
    for label, colour, dash, line in sorted(lines, key=lambda one: y(one[3][-1])):
        points = " ".join(f"{x(turn):.1f},{y(ms):.1f}" for turn, ms in enumerate(line, 1))
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.2"{dashes}/>')
        for turn, ms in enumerate(line, 1):
            out.append(f'<circle cx="{x(turn):.1f}" cy="{y(ms):.1f}" r="2.8" fill="{colour}"/>')
        at = max(y(line[-1]), label_at[-1] + 16 if label_at else 0.0)  # labels keep apart
        label_at.append(at)
        out.append(f'<text x="{x(10) + 10:.1f}" y="{at + 4:.1f}" style="fill:{colour}">{label}</text>')
    return "\n".join(out) + "\n</svg>\n"
