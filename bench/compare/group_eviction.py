#!/usr/bin/env python3
"""Eviction by layer groups: the tokens that are computed again when each group evicts its own blocks, and when all go together.

    build/peers/bin/python bench/compare/group_eviction.py build/bench/bench/replay_groups --data DATA

Gemma 3 270M and the conversations, in three budgets of bytes, one request at a time, without a model. Compared are: a cache
whose pages hold all 18 layers, so that a page is kept or dropped as a whole ("uniform"); groups, whose window blocks stay
until they are evicted by themselves; and groups whose window blocks are freed at once ("dropped").

Tokens that no cache could have reused are not counted: those that an unlimited uniform cache computes. Seconds count all
tokens: 2 FLOP for each of 100 million parameters, and 4 * 4 heads * 256 FLOP for each key that a layer reads, at 10 TFLOP/s.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from block_managers import Setting, requests_of, write
except ImportError as missing:
    print(f"SKIPPED: {missing}; {__doc__.splitlines()[2].strip()}")
    sys.exit(0)

BUDGETS = (16, 32, 64)  # GiB
UNIFORM, GROUPS = "gemma-3-270m uniform", "gemma-3-270m"
FULL, WINDOWED, WINDOW, HEADS, HEAD = 3, 15, 512, 4, 256
PARAMETERS, RATE = 100e6, 1e13


def keys_before(tokens: int, most: int) -> int:
    """The keys that a layer reads for the first tokens of a prompt, at most so many for each."""
    short = min(tokens, most)
    return short * (short + 1) // 2 + (tokens - short) * most


def seconds(first: int, end: int) -> float:
    """Of computing the tokens [first, end) of a prompt."""
    keys = sum(layers * (keys_before(end, most) - keys_before(first, most)) for layers, most in ((FULL, end), (WINDOWED, WINDOW)))
    return ((end - first) * 2 * PARAMETERS + keys * 4 * HEADS * HEAD) / RATE


def replay(program: str, file: Path, model: str, size: int, *more: str) -> tuple[int, float]:
    """Tokens and seconds that are computed."""
    lines = subprocess.run([program, "--trace", str(file), "--model", model, "--bytes", str(size), *more],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    pairs = [tuple(map(int, line.split())) for line in lines[1:]]
    return sum(end - first for end, first in pairs), sum(seconds(first, end) for end, first in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="bench/replay_groups")
    parser.add_argument("--data", type=Path, required=True, help="the directory of traces/ and chats/")
    parser.add_argument("--requests", type=int, default=20000, help="of the trace, at most")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests"
        requests = requests_of(Setting("conversations", 1 << 40), given.data, given.requests)
        write(file, requests)
        tokens = sum(len(prompt) for prompt, _ in requests)
        least = replay(given.program, file, UNIFORM, tokens * 18 * 2 * HEAD * 2 * 5 // 4)  # pages are not all full
        print(f"{len(requests):,} requests of {tokens:,} tokens; any cache computes {least[0]:,}, in {least[1]:,.0f} s.\n")
        print("| GiB | again, uniform | groups | dropped | uniform / groups | seconds, uniform | groups | dropped |\n|---:|" + "---:|" * 7)
        for size in BUDGETS:
            made = [replay(given.program, file, model, size << 30, *more)
                    for model, more in ((UNIFORM, ()), (GROUPS, ()), (GROUPS, ("--drop-released",)))]
            again = [count - least[0] for count, _ in made]
            print(f"| {size} | " + " | ".join(f"{count:,}" for count in again) + f" | {again[0] / again[1]:.3f} | "
                  + " | ".join(f"{time:,.0f}" for _, time in made) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
