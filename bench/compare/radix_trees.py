#!/usr/bin/env python3
"""Our cache with blocks of one token beside SGLang's radix tree: the same requests through both, token by token.

    python3 -m venv build/sglang && build/sglang/bin/pip install --no-deps -r bench/compare/radix_trees.txt
    build/sglang/bin/python bench/compare/radix_trees.py build/bench/bench/replay_blocks --data DATA

Blocks and slots have one token, both evict least recently used ones, and there is no model. Compared is the number of
reused prompt tokens of each request: both compute the last token of a prompt always. Times are pairs, which of the two is
first alternates; ours is C++, SGLang's is Python over arrays. Bytes are those of a token in memory that has room for all.

Exit status 1: with ample memory, a request of which the two reuse different tokens.
"""
import argparse
import gc
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

try:
    import numpy as np

    import block_traces
    import sglang_tree
except ImportError as missing:
    print(f"SKIPPED: {missing}; {__doc__.splitlines()[2].strip()}")
    sys.exit(0)


@dataclass
class Setting:
    """A trace, and the tokens that the memory has room for."""
    trace: str
    tokens: int
    ample: bool
    answers: bool = False


SETTINGS = [
    Setting("conversations", 8_000_000, ample=True),
    Setting("conversations", 500_000, ample=False),
    Setting("sessions", 4_000_000, ample=True),
    Setting("dialogues", 400_000, ample=True, answers=True),
    Setting("dialogues", 6_400, ample=False, answers=True),
    Setting("prefixes", 3_000, ample=True),
]


def write(file: Path, requests: list) -> None:
    with file.open("wb") as out:
        for prompt, answer in requests:
            out.write(np.array([len(prompt), len(answer), *prompt, *answer], dtype=np.uint32).tobytes())


def ours(program: str, file: Path, setting: Setting, block: int) -> tuple[float, float, list[int]]:
    """Seconds, bytes of the cache, and the reused tokens of each request."""
    lines = subprocess.run([program, "--trace", str(file), "--pages", str(setting.tokens // block), "--page-tokens", str(block),
                            "--tokens", "--bytes"], check=True, capture_output=True, text=True).stdout.splitlines()
    return float(lines[0]), float(lines[1]), [int(line.split()[1]) for line in lines[2:]]


def theirs(requests: list, setting: Setting) -> tuple[float, int, list[int]]:
    tree = sglang_tree.Tree(setting.tokens)
    gc.collect()
    begin = time.perf_counter()
    hits = [tree.run(prompt, answer) for prompt, answer in requests]
    return time.perf_counter() - begin, tree.bytes() / max(1, tree.tree.total_size()), hits


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="bench/replay_blocks")
    parser.add_argument("--data", type=Path, required=True, help="the directory of traces/ and chats/")
    parser.add_argument("--requests", type=int, default=500, help="of a trace, at most")
    parser.add_argument("--pairs", type=int, default=20, help="of timed replays")
    given = parser.parse_args()
    version = sglang_tree.load()
    if version is None:
        print("SKIPPED: SGLang is not installed; bench/compare/radix_trees.txt names its version")
        return 0
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests"
        for setting in SETTINGS:
            requests = [(array("q", prompt), array("q", answer if setting.answers else []))
                        for prompt, answer in itertools.islice(block_traces.TRACES[setting.trace](given.data), given.requests)
                        if prompt and len(prompt) + len(answer) <= setting.tokens]
            write(file, requests)
            ratios, coarse, times, hits, own = [], [], [], [], []
            for pair in range(given.pairs):
                def measured() -> tuple:
                    return ours(given.program, file, setting, 1), ours(given.program, file, setting, 16)
                before = measured() if pair % 2 == 0 else None
                seconds, their_bytes, hits = theirs(requests, setting)
                (fine, our_bytes, own), (wide, wide_bytes, _) = before or measured()
                ratios.append(fine / seconds), coarse.append(wide / seconds), times.append(seconds)
            tokens, differ = sum(len(prompt) for prompt, _ in requests), sum(a != b for a, b in zip(own, hits, strict=True))
            wrong += differ if setting.ample else 0
            rows.append(f"| {setting.trace} | {setting.tokens} | {'yes' if setting.answers else 'no'} | {len(requests)} | {tokens} | "
                        f"{sum(hits)} | {sum(own)} | {differ} | {1e6 * statistics.median(times) / len(requests):.0f} | {spread(ratios)} | "
                        f"{spread(coarse)} | {their_bytes:.1f} | {our_bytes:.1f} | {wide_bytes:.1f} |")
            print(rows[-1], file=sys.stderr, flush=True)
    print(f"SGLang {version}; the time of ours by SGLang's is the median (and range) of {given.pairs} pairs, bytes are those a token:\n")
    print("| trace | memory | answers | requests | prompt tokens | SGLang | ours | requests that differ | SGLang us a request | ours by it | "
          "blocks of 16 by it | SGLang bytes | ours | blocks of 16 |\n|---|---:|---|" + "---:|" * 11 + "\n" + "\n".join(rows))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
