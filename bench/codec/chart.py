"""Rows of `bench/codec --json` as the tables of lab/codecs.md and a chart of error over bits a number.

    python3 bench/codec/chart.py ROWS.json lab/codecs.svg > TABLES.md
"""
import json
import sys
from math import log10

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 64, 200, 56, 52


def tables(rows: list[dict]) -> str:
    out = []
    codecs = list(dict.fromkeys(row["codec"] for row in rows))
    sets = list(dict.fromkeys(row["set"] for row in rows if row["rel_mse"] is not None))
    if sets:
        coded = {row["codec"] for row in rows if row["rel_mse"] is not None}
        bits = {row["codec"]: row["bits_per_value"] for row in reversed(rows) if row["bits_per_value"] is not None}
        out.append("| keys | bits | " + " | ".join(sets) + " |\n|---|---:|" + "---:|" * len(sets))
        for codec in [codec for codec in codecs if codec in coded]:
            of = {row["set"]: row["rel_mse"] for row in rows if row["codec"] == codec and row["rel_mse"] is not None}
            out.append(f"| `{codec}` | {bits[codec]:.3f} | " + " | ".join(f"{of[name]:.3g}" for name in sets) + " |")
    stored = [row for row in rows if "times_smaller" in row]
    if stored:
        out.append("\n| loses nothing | set | times smaller | encode GB/s | decode GB/s |\n|---|---|---:|---:|---:|")
        out += [f"| `{row['codec']}` | {row['set']} | {row['times_smaller']:.3f} | {row['encode_gbps']:.2f} | "
                f"{row['decode_gbps']:.2f} |" for row in stored]
    places = list(dict.fromkeys(row["set"] for row in rows if row["attention_ratio_f32"] is not None))
    if places:
        out.append("\n| times as fast as f32 | " + " | ".join(places) + " |\n|---|" + "---:|" * len(places))
        for codec in codecs:
            of = {row["set"]: row["attention_ratio_f32"] for row in rows
                  if row["codec"] == codec and row["attention_ratio_f32"] is not None}
            if not of:
                continue
            out.append(f"| `{codec}` | " + " | ".join(f"{of[place]:.2f}" for place in places if place in of) + " |")
    models = list(dict.fromkeys(row["set"] for row in rows if row["ppl"] is not None))
    for model in models:
        asked = any(row["set"] == model and "accuracy" in row for row in rows)
        out.append(f"\n{model}:\n\n| codec | perplexity | change | KL |" + (" answered |" if asked else "") +
                   "\n|---|---:|---:|---:|" + ("---:|" if asked else ""))
        for row in rows:
            if row["set"] == model and row["ppl"] is not None:
                change = 100 * (row["ppl"] / row["ppl_f32"] - 1)
                out.append(f"| `{row['codec']}` | {row['ppl']:.4f} | {change:+.3f} % | {row['kl']:.3g} |" +
                           (f" {100 * row['accuracy']:.1f} % |" if "accuracy" in row else ""))
    return "\n".join(out)


def chart(rows: list[dict]) -> str:
    name = next(row["set"] for row in rows if row["rel_mse"] is not None)
    points = [(row["codec"], row["bits_per_value"], row["rel_mse"]) for row in rows
              if row["set"] == name and row["rel_mse"]]
    low, high = min(log10(p[2]) for p in points) // 1, max(log10(p[2]) for p in points) // 1 + 1
    most = max(p[1] for p in points)
    x = lambda bits: LEFT + bits * (WIDTH - LEFT - RIGHT) / most
    y = lambda error: TOP + (HEIGHT - TOP - BOTTOM) * (high - log10(error)) / (high - low)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
           'font-size="12" role="img">', "<title>Error over bits a number</title>",
           "<style>text{fill:#57606a}.grid{stroke:#8b949e;stroke-opacity:.3}.head{font-size:15px;font-weight:600}"
           "@media(prefers-color-scheme:dark){text{fill:#9da7b3}}</style>",
           f'<text class="head" x="{LEFT}" y="24">Relative squared error of keys over bits a number ({name})</text>']
    for power in range(int(low), int(high) + 1):
        at = y(10.0 ** power)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">1e{power}</text>')
    for bits in range(0, int(most) + 1, 2):
        out.append(f'<text x="{x(bits):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{bits}</text>')
    last = 0.0
    for codec, bits, error in sorted(points, key=lambda p: y(p[2])):
        last = max(y(error), last + 15)  # labels keep apart
        shown = codec.replace("<", "&lt;").replace(">", "&gt;")
        out.append(f'<circle cx="{x(bits):.1f}" cy="{y(error):.1f}" r="3.5" fill="#3b82c4"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 12}" y="{last + 4:.1f}">{shown}</text>')
        out.append(f'<line class="grid" x1="{x(bits) + 4:.1f}" x2="{WIDTH - RIGHT + 8}" y1="{y(error):.1f}" y2="{last:.1f}"/>')
    return "\n".join(out) + "\n</svg>\n"


if __name__ == "__main__":
    read = [row for path in sys.argv[1:-1] for row in json.load(open(path))]
    open(sys.argv[-1], "w").write(chart(read))
    print(tables(read))
