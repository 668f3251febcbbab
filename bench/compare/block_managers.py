#!/usr/bin/env python3
"""Our cache beside vLLM's block manager: the same requests of tokens through both, block by block, and the time of each.

    python3 -m venv build/peers && build/peers/bin/pip install --no-deps -r bench/compare/block_managers.txt
    build/peers/bin/python bench/compare/block_managers.py build/bench/bench/replay_blocks --data DATA

Blocks and pages have 16 tokens, both evict least recently used blocks, and there is no model. Compared is the number of
reused prompt tokens of each request, in whole blocks: both compute the last token of a prompt always, so that at most
(tokens - 1) / 16 blocks are reused. Ours shares full pages alone, or (column "by token") tokens, as acquire does, whose
count is rounded down to blocks. Times are pairs, which of the two is first alternates; ours is C++, vLLM's is Python.

Exit status 1: a recorded workload has a request of which the two reuse different blocks.
"""
import argparse
import gc
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

try:
    import numpy as np

    import block_traces
    import vllm_blocks
except ImportError as missing:
    print(f"SKIPPED: {missing}; {__doc__.splitlines()[2].strip()}")
    sys.exit(0)

BLOCK = vllm_blocks.BLOCK


@dataclass
class Setting:
    """A trace, and how it is replayed."""
    trace: str
    pages: int
    in_flight: int = 1
    answers: bool = False
    timed: bool = False


SETTINGS = [
    Setting("conversations", 1_500_000, timed=True),
    Setting("conversations", 30_000, timed=True),
    Setting("conversations", 30_000, in_flight=8),
    Setting("conversations", 60_000, in_flight=8, answers=True, timed=True),
    Setting("sessions", 300_000, timed=True),
    Setting("sessions", 17_000, timed=True),
    Setting("sessions", 18_000, in_flight=8, answers=True, timed=True),
    Setting("dialogues", 50_000, timed=True),
    Setting("dialogues", 400, timed=True),
    Setting("dialogues", 400, in_flight=8),
    Setting("dialogues", 400, in_flight=8, answers=True, timed=True),
    Setting("prefixes", 80),
    Setting("prefixes", 80, in_flight=4),
    Setting("whole prefixes", 80),
    Setting("prefixes of three tokens", 40),
]
RECORDED = ("conversations", "sessions", "dialogues")


def write(file: Path, requests: list):
    with file.open("wb") as out:
        for prompt, answer in requests:
            out.write(np.array([len(prompt), len(answer), *prompt, *answer], dtype=np.uint32).tobytes())


def ours(program: str, file: Path, setting: Setting, *more: str) -> tuple[float, list[int]]:
    """Seconds, and the reused tokens of each request."""
    lines = subprocess.run([program, "--trace", str(file), "--pages", str(setting.pages), "--in-flight", str(setting.in_flight), *more],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    return float(lines[0]), [int(line.split()[1]) for line in lines[1:]]


def theirs(requests: list, setting: Setting) -> tuple[float, float, list[int]]:
    """Seconds, those of them that made and hashed the requests, and the reused tokens of each request."""
    manager = vllm_blocks.BlockManager(setting.pages, setting.in_flight)
    gc.collect()
    hits, hashing = [], 0.0
    begin = time.perf_counter()
    for prompt, answer in requests:
        before = time.perf_counter()
        request = manager.request(prompt)
        hashing += time.perf_counter() - before
        hits.append(manager.run(request, answer))
    return time.perf_counter() - begin, hashing, hits


def requests_of(setting: Setting, data: Path, count: int) -> list:
    """The first requests of a trace, without those that are larger than the memory."""
    made = []
    for prompt, answer in itertools.islice(block_traces.TRACES[setting.trace](data), count):
        answer = answer if setting.answers else []
        if prompt and -(-(len(prompt) + len(answer)) // BLOCK) <= setting.pages:
            made.append((prompt, answer))
    return made


def differing(hits: list[int], others: list[int]) -> int:
    return sum(one // BLOCK != other // BLOCK for one, other in zip(hits, others, strict=True))


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="bench/replay_blocks")
    parser.add_argument("--data", type=Path, required=True, help="the directory of traces/ and chats/")
    parser.add_argument("--requests", type=int, default=2000, help="of a trace, at most")
    parser.add_argument("--pairs", type=int, default=20, help="of timed replays")
    given = parser.parse_args()
    version = vllm_blocks.load()
    if version is None:
        print("SKIPPED: vLLM is not installed; bench/compare/block_managers.txt names its version")
        return 0
    counted, timed, wrong = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests"
        for setting in SETTINGS:
            requests = requests_of(setting, given.data, given.requests)
            write(file, requests)
            answers = "yes" if setting.answers else "no"
            name = f"| {setting.trace} | {setting.pages} | {setting.in_flight} | {answers} | {len(requests)} |"
            hits = theirs(requests, setting)[2]
            own, by_token = ours(given.program, file, setting)[1], ours(given.program, file, setting, "--tokens")[1]
            differ = differing(own, hits)
            wrong += differ if setting.trace in RECORDED else 0
            tokens = sum(len(prompt) for prompt, _ in requests)
            counted.append(f"{name} {tokens} | {sum(hits)} | {sum(own)} | {differ} | {sum(by_token)} | {differing(by_token, hits)} |")
            print(counted[-1], file=sys.stderr, flush=True)
            if not setting.timed:
                continue
            a, b, c = [], [], []
            for pair in range(given.pairs):
                seconds = ours(given.program, file, setting)[0] if pair % 2 == 0 else 0.0
                whole, hashing, _ = theirs(requests, setting)
                seconds = seconds or ours(given.program, file, setting)[0]
                a.append(seconds), b.append(whole), c.append(whole - hashing)
            micro = 1e6 / len(requests)
            timed.append(f"{name} {statistics.median(a) * micro:.1f} | {statistics.median(b) * micro:.1f} | "
                         f"{spread([x / y for x, y in zip(a, b)], 4)} | {spread([x / y for x, y in zip(a, c)], 4)} |")
            print(timed[-1], file=sys.stderr, flush=True)
    head = "| trace | pages | in flight | answers | requests |"
    print(f"vLLM {version}. Reused tokens of the prompts:\n\n{head} prompt tokens | vLLM | ours | requests that differ | by token | differ |")
    print("|---|---:|---:|---|---:|" + "---:|" * 6 + "\n" + "\n".join(counted))
    print(f"\nMicroseconds a request, medians of {given.pairs} pairs; ratios are the median (and range) of ours over vLLM's:\n")
    print(f"{head} ours | vLLM | ratio | ratio without its hashing |\n|---|---:|---:|---|---:|" + "---:|" * 4 + "\n" + "\n".join(timed))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
