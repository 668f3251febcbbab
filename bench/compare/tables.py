"""What a state holds, as tables: ours, theirs, and the ratio; above 1 is in our favour."""
from state import State

WEIGHTS = {"f32": "f32", "bf16": "bf16", "int8": "q8_0", "blocks": "blocks", "blocks-int8": "blocks-int8"}  # ours: theirs


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def ratio(over: float | None, under: float | None) -> str:
    return f"{over / under:.2f}" if over and under else "-"


def print_table(title: str, heads: list[str], rows: list[list[str]], markdown: bool) -> None:
    if not rows:
        return
    if markdown:
        rule = "|".join("---:" if i else "---" for i in range(len(heads)))
        print(f"\n### {title}\n\n| {' | '.join(heads)} |\n|{rule}|")
        for row in rows:
            print("| " + " | ".join(row) + " |")
        return
    wide = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    print(f"\n{title}")
    for row in [heads, *rows]:
        print("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, wide))))


def speed_rows(state: State, what: str, flags) -> list[list[str]]:
    rows = []
    for ours, theirs in WEIGHTS.items():
        for depth in flags.depths:
            for t in flags.threads:
                name = f"{what}_d{depth}/t{t}"
                value, limit = state.median(f"ours/{ours}/{name}"), state.median(f"ours/{ours}/{name}/limit")
                f16 = state.best_rate([f"{who} f16{how}/{theirs}/{name}" for how in ("", " plain")
                                       for who in ("llama-bench", "llama-server", "llama-cpp-python")])  # with flash attention, and without
                f32 = state.median(f"llama-server f32/{theirs}/{name}")
                if value or f16:
                    rows.append([ours, str(depth), str(t), number(value), number(limit),
                                 f"{100 * value / limit:.0f} %" if value and limit else "-",
                                 number(f16), ratio(value, f16), number(f32), ratio(value, f32)])
    return rows


def chat_rows(state: State, flags) -> list[list[str]]:
    rows = []
    for ours, theirs in WEIGHTS.items():
        for t in flags.threads:
            for turn in (1, 2, 5, 10) if flags.markdown else range(1, 11):
                at = lambda who, dtype, what: state.median(f"{who}/{dtype}/chat_{what}_turn_{turn:02}/t{t}")
                warm, bound, cold = (at("ours", ours, what) for what in ("warm", "bound", "cold"))
                server, http, server_cold = (at("llama-server f16", theirs, what) for what in ("warm", "warm_http", "cold"))
                if warm or server:
                    rows.append([ours, str(t), str(turn), number(cold), number(warm), number(bound), ratio(warm, bound),
                                 ratio(cold, warm), number(server_cold), number(server), number(http, 2),
                                 ratio(server, warm), ratio(server_cold, cold)])
    return rows


def reuse_rows(state: State, flags) -> list[list[str]]:
    rows = []
    for ours, theirs in WEIGHTS.items():
        for what in ("shared_system", "permuted_documents"):
            for t in flags.threads:
                cells = [state.median(f"{who}/{dtype}/{what}_{how}/t{t}") for who, dtype in
                         (("ours", ours), ("llama-server f16", theirs)) for how in ("cold", "warm")]
                if cells[1] or cells[3]:
                    rows.append([what.replace("_", " "), ours, str(t), *map(number, cells[:2]), ratio(*cells[:2]),
                                 *map(number, cells[2:]), ratio(*cells[2:]), ratio(cells[3], cells[1])])
    return rows


def zero_rows(state: State, flags) -> list[list[str]]:
    rows = []
    for ours in WEIGHTS:
        for t in flags.threads:
            cells = [state.median(f"ours/{ours}/zero_reuse_512{how}/t{t}") for how in ("", "_no_cache")]
            if all(cells):
                rows.append([ours, str(t), *map(number, cells), f"{100 * (cells[0] / cells[1] - 1):+.1f} %"])
    return rows


def quant_rows(state: State, flags) -> list[list[str]]:
    rows = []
    for ours, theirs in WEIGHTS.items():
        for t in flags.threads:
            theirs_rate = state.median(f"quant/{theirs}/token_after_token/t{t}")
            mine = [state.median(f"ours/{ours}/{what}_d0/t{t}") for what in ("prefill_512", "generation")]
            if theirs_rate:
                cells = [cell for rate in mine for cell in (number(rate), ratio(rate, theirs_rate))]
                rows.append([ours, str(t), number(theirs_rate), *cells])
    return rows


def show(state: State, flags) -> None:
    heads = ["weights", "depth", "threads", "ours", "limit", "reached", "llama.cpp, F16 pages", "ratio",
             "llama.cpp, F32 pages", "ratio"]
    for what, title in (("prefill_512", "A prompt of 512 tokens, tokens a second"),
                        ("generation", "An answer of 32 tokens, tokens a second")):
        print_table(title, heads, speed_rows(state, what, flags), flags.markdown)
    print_table("Ten-turn chat, milliseconds to the first token",
                ["weights", "threads", "turn", "ours cold", "warm", "bound", "warm / bound", "cold / warm",
                 "llama-server cold", "warm", "not in the model", "warm: theirs / ours", "cold: theirs / ours"],
                chat_rows(state, flags), flags.markdown)
    print_table("Reuse across prompts, milliseconds to the first token",
                ["scenario", "weights", "threads", "ours cold", "warm", "cold / warm", "llama-server cold", "warm",
                 "cold / warm", "warm: theirs / ours"], reuse_rows(state, flags), flags.markdown)
    print_table("A prompt of 512 tokens that nothing is known of, milliseconds",
                ["weights", "threads", "through the cache", "without", "costs"], zero_rows(state, flags), flags.markdown)
    print_table("quant.cpp, tokens a second", ["weights", "threads", "a token after the other", "our prompt", "ratio",
                "our answer", "ratio"], quant_rows(state, flags), flags.markdown)
