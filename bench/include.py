#!/usr/bin/env python3
"""What including the library costs: user seconds and peak memory of one compile of each unit in bench/include/,
beside an empty file that includes <Eigen/Dense>, compiled in turn with the same flags.

    python3 bench/include.py [--compiler g++] [--rounds 5] [--filter WORD] [--json rows.json]

A unit's first lines say how it is built: "// flags: ..." and "// limit: ..." (of Eigen's time). A ratio is the median
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--compiler", default="g++")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--filter", default="")
    options.add_argument("--json", type=Path)
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
    of_limit = [row["ratio_to_eigen"] / limit for row, limit in rows if limit]
    if of_limit:
        print(f"include: {exp(statistics.fmean(map(log, of_limit))):.3f} of the limits")


if __name__ == "__main__":
    main()
