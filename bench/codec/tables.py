"""Rows of `bench/codec --json` as the tables of lab/codecs.md.

    python3 bench/codec/tables.py ROWS.json... > TABLES.md
"""
import json
import sys


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
        out.append(f"\n{model}:\n\n| codec | bits | perplexity | change | KL | same token |" + (" answered |" if asked else "") +
                   "\n|---|---:|---:|---:|---:|---:|" + ("---:|" if asked else ""))
        for row in rows:
            if row["set"] == model and row["ppl"] is not None:
                change = 100 * (row["ppl"] / row["ppl_f32"] - 1)
                out.append(f"| `{row['codec']}` | {row['bits_per_value']:.3f} | {row['ppl']:.4f} | {change:+.3f} % | {row['kl']:.3g} | "
                           f"{100 * row['same_token']:.2f} % |" + (f" {100 * row['accuracy']:.1f} % |" if "accuracy" in row else ""))
    return "\n".join(out)


if __name__ == "__main__":
    print(tables([row for path in sys.argv[1:] for row in json.load(open(path))]))
