#!/usr/bin/env python3
"""Counts what the cache itself costs, in instructions: bench/cache_work under callgrind, one part at a time.

    tools/count_cache_work.py build/bench/bench/cache_work [--layers 4] [--prompt 512] [--fresh 16]

The counts are the same from run to run, whatever else the machine does. They say nothing of memory traffic.
"""
import argparse
import re
import subprocess
import sys
import tempfile


def count(program, part, flags):
    """Instructions of all calls of one function of the program, with what it calls."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--toggle-collect={part}(*",
             f"--callgrind-out-file={folder}/out", program, *flags],
            capture_output=True, text=True)
    collected = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or not collected or int(collected[1]) == 0:
        sys.exit(f"{part}: callgrind counted nothing\n{run.stderr[-2000:]}")
    return int(collected[1])


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program", help="the built bench/cache_work")
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--prompt", type=int, default=512)
    options.add_argument("--fresh", type=int, default=16)
    chosen = options.parse_args()
    flags = [f"--{name}={getattr(chosen, name)}" for name in ("layers", "prompt", "fresh")]

    counts = {}
    for part in ("prompt_through_the_cache", "prompt_past_the_cache", "next_turn", "new_tokens_alone"):
        counts[part] = count(chosen.program, part, flags)
        print(f"{part:26} {counts[part]:>16,} instructions", flush=True)
    for name, over, under in (("zero reuse", "prompt_through_the_cache", "prompt_past_the_cache"),
                              ("warm turn", "next_turn", "new_tokens_alone")):
        print(f"{name}: {counts[over] / counts[under]:.5f} x")


if __name__ == "__main__":
    main()
