#!/usr/bin/env python3
"""The figure of docs/concepts.md: two sequences, their block tables and pages; and the life of a page.

    docs/figures/concepts.py [docs/figures/concepts.svg]      needs matplotlib (bench/charts.txt)
"""
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "kvcache", "svg.fonttype": "none", "font.size": 9, "font.family": "DejaVu Sans"})
from matplotlib import pyplot  # pylint: disable=wrong-import-position
from matplotlib.patches import FancyArrowPatch, Rectangle  # pylint: disable=wrong-import-position

BLUE, ORANGE, GREY, DARK = "#2a6fbb", "#c8641b", "#777777", "#333333"
IN_USE, LEASED, EVICTABLE, FREE = "#cfe0f3", "#f6dcc8", "#e6e6e6", "#ffffff"


def box(axes, x, y, width, height, words="", colour=FREE, *, hatch="", edge=DARK, size=9):
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=0.9))
    axes.text(x + width / 2, y + height / 2, words, ha="center", va="center", size=size, color=DARK,
              bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.0} if hatch else None)


def arrow(axes, start, end, colour=GREY, *, bend=0.0, dashed=False):
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=8, color=colour, linewidth=0.9,
                                   linestyle="--" if dashed else "-", connectionstyle=f"arc3,rad={bend}",
                                   shrinkA=0, shrinkB=0))


def sequences(axes):
    """Two sequences that share two pages; the second has a lease."""
    def label(x, y, words, **more):
        axes.text(x, y, words, va="center", color=more.pop("color", GREY), **more)

    token = 0.125  # a page of 16 tokens is 2 wide
    label(0, 9.35, "sequence A: 40 tokens", color=DARK, weight="bold")
    label(8, 9.35, "sequence B: 32 tokens, and a lease over 12 rows", color=DARK, weight="bold")
    tables, pages = {}, {}
    for x, name, last in ((0, "A", 8), (8, "B", 12)):
        for i, count in enumerate((16, 16, last)):
            begin = 16 * i
            leased = name == "B" and i == 2
            box(axes, x + 2 * i, 8.2, token * count, 0.7, f"{begin}\u2013{begin + count - 1}", LEASED if leased else IN_USE,
                hatch="////" if leased else "", edge=ORANGE if leased else DARK)
    label(5.2, 8.55, "tokens, by position")
    label(13.7, 8.75, "lease: first() = 32", color=ORANGE)
    label(13.7, 8.35, "rows() = 12", color=ORANGE)
    for x, name, entries in ((0, "A", (3, 0, 6)), (8, "B", (3, 0, 7))):
        for i, page in enumerate(entries):
            box(axes, x + 2 * i + 0.1, 6.3, 0.8, 0.7, str(page), LEASED if page == 7 else IN_USE, edge=ORANGE if page == 7 else DARK)
            arrow(axes, (x + 2 * i + 0.5, 8.15), (x + 2 * i + 0.5, 7.05))
            tables[name, i] = (x + 2 * i + 0.5, 6.25)
    label(5.2, 6.65, "block table of A")
    label(13.7, 6.65, "block table of B")
    states = "in use", "evictable", "free", "in use", "evictable", "free", "in use", "leased", "evictable"
    colours = {"in use": IN_USE, "evictable": EVICTABLE, "free": FREE, "leased": LEASED}
    for page, state in enumerate(states):
        x = 1.75 * page
        box(axes, x, 3.6, 1.5, 0.9, f"page {page}", colours[state], hatch="////" if state == "leased" else "",
            edge=ORANGE if state == "leased" else DARK)
        label(x + 0.75, 3.3, state, ha="center", size=8, color=ORANGE if state == "leased" else GREY)
        pages[page] = (x + 0.75, 4.55)
    for (name, i), start in tables.items():
        page = ((3, 0, 6), (3, 0, 7))[name == "B"][i]
        shift = 0.0 if page in (6, 7) else (-0.2 if name == "A" else 0.2)
        arrow(axes, start, (pages[page][0] + shift, 4.55), ORANGE if page == 7 else BLUE)
    label(15.75, 4.05, "memory: 9 pages of", size=8.5)
    label(15.75, 3.65, "16 tokens (blocks)", size=8.5)
    box(axes, 0, 1.6, 15.5, 0.8, "index: which prefix of tokens is in which page. It finds the published pages 0, 3, 6 and 1, 4, 8.",
        "#f4f4f4", edge=GREY)
    for page in (0, 1, 3, 4, 6, 8):
        arrow(axes, (pages[page][0], 2.42), (pages[page][0], 3.12), GREY, dashed=True)


def life(axes):
    """The states of a page, and the calls that change them."""
    def step(start, end, words, x, y, **more):
        arrow(axes, start, end, more.pop("colour", DARK), **more)
        axes.text(x, y, words, ha="center", va="center", size=8.5, color=DARK)

    axes.text(0, 5.4, "life of a page", va="center", color=DARK, weight="bold")
    box(axes, 0, 2.6, 2.2, 1.0, "free", FREE)
    box(axes, 5, 2.6, 2.6, 1.0, "leased", LEASED, hatch="////", edge=ORANGE)
    box(axes, 10.6, 2.6, 2.6, 1.0, "in use", IN_USE)
    box(axes, 15.9, 2.6, 2.2, 1.0, "evictable", EVICTABLE)
    step((2.25, 3.1), (4.95, 3.1), "acquire\nor reserve", 3.6, 3.65)
    step((7.65, 3.1), (10.55, 3.1), "commit\npublishes it", 9.1, 3.65)
    step((13.25, 3.3), (15.85, 3.3), "last sequence\nis dropped", 14.55, 3.8)
    step((15.85, 2.9), (13.25, 2.9), "acquire: a hit", 14.55, 2.6)
    step((17.6, 3.65), (0.6, 3.65), "evict: another request needs its memory", 9, 5.45, bend=0.17)
    step((6.3, 2.55), (1.3, 2.55), "rollback: the lease ends without a commit", 3.55, 1.65, bend=-0.18)
    box(axes, 9.9, 0.2, 4.0, 0.9, "tier: records on disk or Redis", "#f4f4f4", edge=GREY)
    step((11.6, 2.55), (11.6, 1.15), "commit:\nfull pages", 10.65, 1.85, dashed=True)
    step((12.4, 1.15), (12.4, 2.55), "acquire:\nafter eviction", 13.6, 1.85, dashed=True)


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg")
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9.2, 6.6), height_ratios=(8.6, 5.6))
    for axes, draw, height in ((above, sequences, (1.3, 9.8)), (below, life, (0.0, 5.8))):
        draw(axes)
        axes.set_xlim(-0.2, 18.4)
        axes.set_ylim(*height)
        axes.axis("off")
    figure.tight_layout(pad=0.5)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
