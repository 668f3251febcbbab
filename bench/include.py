#!/usr/bin/env python3
"""What including the library costs: user seconds and peak memory of one compile of each unit in bench/include/,
beside an empty file that includes <Eigen/Dense>, compiled in turn with the same flags.

    python3 bench/include.py [--compiler g++] [--rounds 5] [--filter WORD] [--json rows.json] [--page]

--page writes the ratios of empty files into the table of docs/getting_started.md. A unit's first lines say how it is built: "// flags: ..." and "// limit: ..." (of Eigen's time). A ratio is the median
over the rounds of a unit's time by that of the Eigen file compiled just before it. The last line is the score: the
geometric mean of ratio by limit, where 1 is the limit and less is better.
"""
import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from math import exp, log
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
UNITS = HOME / "bench" / "include"
PAGE = HOME / "docs" / "getting_started.md"
EIGEN = "#include <Eigen/Dense>\nint main() {}\n"


def include_flags() -> list[str]:
    found = subprocess.run(["pkg-config", "--cflags-only-I", "--keep-system-cflags", "eigen3"],
                           capture_output=True, text=True)
    where = found.stdout.split() if found.returncode == 0 else ["-I/usr/include/eigen3"]
    return [f"-I{HOME / 'include'}", *where]


def compile_once(compiler: str, flags: list[str], source: Path, scratch: Path) -> tuple[float, float]:
    """User seconds and MiB of one compile. A child is measured in a process of its own: its peak is no other's."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        done = subprocess.run([compiler, "-std=c++20", "-O2", *flags, *include_flags(), "-c", str(source), "-o",
                               str(scratch / "unit.o")])
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        os.write(writing, f"{done.returncode} {used.ru_utime} {used.ru_maxrss / 1024}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        words = result.read().split()
    os.waitpid(child, 0)
    if not words or words[0] != "0":
        sys.exit(f"include: {source} does not compile with {' '.join([compiler, *flags])}")
    return float(words[1]), float(words[2])


def line(unit: Path, word: str) -> str:
    found = re.search(rf"^// {word}: *(.*)$", unit.read_text(), re.M)
    return found.group(1) if found else ""


def write_page(ratios: dict[str, float]) -> None:
    """Puts the ratio of each empty file into the row of its header, and what the rule of the table compares."""
    sys.path.insert(0, str(HOME / "tools"))
    from lint_include_times import NOTE, lines_reached
    text, reached = PAGE.read_text(), []
    for unit, ratio in ratios.items():
        header = unit.removesuffix("_empty") + ".hpp"
        row = re.compile(rf"^(\| `<kvcache/{header}>` \|.*\| )[\d.]+( \|)$", re.M)
        if row.search(text):
            text = row.sub(rf"\g<1>{ratio:.1f}\g<2>", text)
            reached.append(f"{header} {lines_reached(header)}")
    note = f"<!-- lines reached: {', '.join(reached)} -->"
    PAGE.write_text(NOTE.sub(note, text) if NOTE.search(text) else text.replace("\nThe times are multiples", f"\n{note}\n\nThe times are multiples"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--compiler", default="g++")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--filter", default="")
    options.add_argument("--json", type=Path)
    options.add_argument("--page", action="store_true", help="write the table of docs/getting_started.md")
    given = options.parse_args()
    units = [unit for unit in sorted(UNITS.glob("*.cpp")) if re.search(given.filter, unit.stem)]
    if not units or given.rounds < 1:
        sys.exit("include: nothing to measure")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        eigen = scratch / "eigen.cpp"
        eigen.write_text(EIGEN)
        print(f"{'unit':24} {'seconds':>8} {'MiB':>6} {'of Eigen':>9} {'limit':>6}")
        for unit in units:
            flags = line(unit, "flags").split()
            of_eigen = [flag for flag in flags if not flag.startswith("-D")]
            seconds, ratios, mib = [], [], 0.0
            for _ in range(given.rounds):
                beside, _ = compile_once(given.compiler, of_eigen, eigen, scratch)
                took, peak = compile_once(given.compiler, flags, unit, scratch)
                seconds.append(took)
                ratios.append(took / beside)
                mib = max(mib, peak)
            row = {"unit": unit.stem, "seconds": round(statistics.median(seconds), 3), "mib": round(mib),
                   "ratio_to_eigen": round(statistics.median(ratios), 3)}
            limit = line(unit, "limit")
            rows.append((row, float(limit) if limit else None))
            print(f"{row['unit']:24} {row['seconds']:8.2f} {row['mib']:6} {row['ratio_to_eigen']:9.2f} {limit:>6}",
                  flush=True)
    if given.json:
        given.json.write_text(json.dumps([row for row, _ in rows], indent=1) + "\n")
    if given.page:
        write_page({row["unit"]: row["ratio_to_eigen"] for row, _ in rows if row["unit"].endswith("_empty")})
    of_limit = [row["ratio_to_eigen"] / limit for row, limit in rows if limit]
    if of_limit:
        print(f"include: {exp(statistics.fmean(map(log, of_limit))):.3f} of the limits")


if __name__ == "__main__":
    main()
