#!/usr/bin/env python3
"""The pictures of lab/, from the rows that benchmarks write. Needs matplotlib (bench/charts.txt).

    charts.py chunks ROWS.json OUT.svg [TITLE]   chunk_reuse --part quality --json
    charts.py codecs ROWS.json OUT.svg [TITLE]   codec --json, with the perplexity of a model
    charts.py turns STATE.json OUT.svg [WEIGHTS [THREADS]]   compare.py chat --state
    charts.py replay ROWS.json OUT.svg [TITLE]   replay_trace --json
"""
import json
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "kvcache", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                            "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True})
from matplotlib import pyplot  # pylint: disable=wrong-import-position

BLUE, ORANGE, GREY = "#2a6fbb", "#c8641b", "#777777"


def chunks(rows: list[dict], title: str = "") -> pyplot.Figure:
    """What each strategy leaves of the divergence, a bar each, with the share of reused tokens that run again."""
    rows = [row for row in rows if row["part"] == "quality"]
    rows = list({row["strategy"]: row for row in rows}.values())
    figure, axes = pyplot.subplots(figsize=(7.6, 0.8 + 0.3 * len(rows)))
    left = [100 * row["kl"] / row["kl_none"] for row in rows]
    axes.barh(range(len(rows)), left, color=[GREY if row["strategy"] == "random" else BLUE for row in rows], height=0.6)
    for at, (row, share) in enumerate(zip(rows, left)):
        axes.annotate(f"{share:.0f} %, {100 * row['recomputed_share']:.1f} % run again", (share, at), (5, 0),
                      textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [row["strategy"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max(left))
    axes.set_xlabel("KL divergence left, % of that of reuse without repair")
    axes.set_title(title, loc="left")
    return figure


def codecs(rows: list[dict], title: str = "") -> pyplot.Figure:
    """The divergence of a model's predictions with each codec, smallest first; bits a value where the rows have them."""
    bits = {row["codec"]: row["bits_per_value"] for row in rows if (row.get("bits_per_value") or 32) < 32}
    rows = sorted((row for row in rows if row.get("kl")), key=lambda row: row["kl"])
    figure, axes = pyplot.subplots(figsize=(7.6, 0.8 + 0.38 * len(rows)))
    axes.scatter([row["kl"] for row in rows], range(len(rows)), color=BLUE, zorder=3)
    axes.hlines(range(len(rows)), 0, [row["kl"] for row in rows], color=BLUE, alpha=0.3)
    names = [row["codec"].replace(", ", ",\n") for row in rows]
    axes.set_yticks(range(len(rows)), [name + (f", {bits[row['codec']]:.3g} bits" if row["codec"] in bits else "")
                                       for name, row in zip(names, rows)])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("KL divergence from float32 pages, nats a token")
    axes.set_title(title, loc="left")
    return figure


def turns(samples: dict[str, list[float]], weights: str = "f32", threads: str = "2") -> pyplot.Figure:
    """Milliseconds to the first token, turn by turn."""
    figure, axes = pyplot.subplots(figsize=(7.6, 4.2))
    for who, what, label, colour, line in (("ours", "cold", "kvcache, cold", BLUE, "--"), ("ours", "warm", "kvcache, cached", BLUE, "-"),
                                           ("llama-server f16", "cold", "llama-server, cold", ORANGE, "--"),
                                           ("llama-server f16", "warm", "llama-server, cached", ORANGE, "-")):
        names = [f"{who}/{weights}/chat_{what}_turn_{turn:02}/t{threads}" for turn in range(1, 11)]
        if all(name in samples for name in names):
            axes.plot(range(1, 11), [statistics.median(samples[name]) for name in names], line, color=colour, marker="o",
                      markersize=3, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axes.set_xticks(range(1, 11))
    axes.set_xlabel("turn")
    axes.set_ylabel("ms to the first token")
    axes.set_title(f"SmolLM2-135M, weights: {weights}, threads: {threads}", loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def replay(rows: list[dict], title: str = "") -> pyplot.Figure:
    """Hit ratio over capacity, a line for each policy."""
    figure, axes = pyplot.subplots(figsize=(7.6, 4.2))
    infinite = [row["hit_ratio"] for row in rows if row["capacity"] == "infinite"]
    rows = [row for row in rows if row["capacity"] != "infinite"]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        line = sorted((row["capacity"], row["hit_ratio"]) for row in rows if row["policy"] == policy)
        axes.plot(*zip(*line), marker="o", markersize=3, label=policy)
    bound = sorted({(row["capacity"], row["clairvoyant_hit_ratio"]) for row in rows if row["clairvoyant_hit_ratio"]})
    if bound:
        axes.plot(*zip(*bound), "--", color="black", label="clairvoyant")
    for ratio in infinite[:1]:
        axes.axhline(ratio, color=GREY, linestyle=":", label="infinite")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("capacity")
    axes.set_ylabel("hit ratio")
    axes.set_title(title, loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def main() -> None:
    kinds = {"chunks": chunks, "codecs": codecs, "turns": turns, "replay": replay}
    if len(sys.argv) < 4 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    kind, rows, out, *more = sys.argv[1:]
    figure = kinds[kind](json.loads(Path(rows).read_text()), *more)
    figure.savefig(out, bbox_inches="tight", metadata={"Date": None, "Creator": None}, facecolor="white")
    text = Path(out).read_text()
    Path(out).write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


if __name__ == "__main__":
    main()
