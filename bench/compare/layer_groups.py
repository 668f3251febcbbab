#!/usr/bin/env python3
"""Our cache of layer groups and vLLM's block manager with its hybrid coordinator: sliding windows and recurrent states.

    python3 -m venv build/peers && build/peers/bin/pip install --no-deps -r bench/compare/block_managers.txt
    build/peers/bin/python bench/compare/layer_groups.py build/bench/bench/replay_groups --data DATA

The same requests through both, in the same bytes, without a model: pages of 16 tokens, prompts computed 2,048 tokens at a
time, least recently used blocks evicted. vLLM divides the layers into groups of equally many, as its planning does, with one pool
for all. Its blocks have 16 tokens too, or with recurrent states so many that a block of full attention has at least the bytes
of a state: 528 for Qwen3.5 9B. Compared are the reused prompt tokens of each request; ours reuses parts of blocks, too, so that
its counts are rounded down to 16. Times are pairs, which of the two is first alternates; ours is C++, vLLM's is Python.

Exit status 1: a request reuses fewer blocks in ours, with a model of windows. With recurrent states that depends on where the
host leaves snapshots, so it is shown alone.
"""
import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

try:
    from block_managers import BLOCK, Setting, requests_of, spread, write

    import vllm_blocks
except ImportError as missing:
    print(f"SKIPPED: {missing}; {__doc__.splitlines()[2].strip()}")
    sys.exit(0)

CHUNK = 2048


@dataclass
class Model:
    """A layout of bench/replay/group_replay.hpp, as vLLM groups it, and more arguments of the replay."""
    layout: str
    block_bytes: int  # of vLLM's blocks
    groups: vllm_blocks.Groups
    more: tuple[str, ...] = ()

    def blocks(self, count: int) -> int:
        """vLLM's blocks for as many tokens as `count` blocks of 16 tokens have."""
        return count * BLOCK // self.groups.tokens


def qwen(unit: int, *more: str) -> Model:
    """Qwen3.5 9B: 8 layers of full attention with 4 KV heads of 256, and 24 with states, in 3 groups of 8."""
    return Model("qwen3.5-9b", 8 * 528 * 2 * 4 * 256 * 2, vllm_blocks.Groups(states=3, tokens=528, unit=unit), more)


MODELS = {
    "gemma-3-270m": Model("gemma-3-270m", 3 * BLOCK * 2 * 256 * 2, vllm_blocks.Groups((512,) * 5)),
    "gpt-oss-20b": Model("gpt-oss-20b", 12 * BLOCK * 2 * 8 * 64 * 2, vllm_blocks.Groups((128,))),
    "qwen3.5-9b": qwen(528),
    "qwen3.5-9b, unit 16": qwen(16),  # vLLM's prefix_match_unit
    "qwen3.5-9b --before-end 0": qwen(528, "--before-end", "0"),
    "qwen3.5-9b --doubling": qwen(528, "--doubling"),
}
BLOCKS = {"conversations": (400_000, 60_000), "sessions": (60_000, 25_000), "dialogues": (20_000, 2_000)}


def ours(program: str, file: Path, model: Model, blocks: int, in_flight: int) -> tuple[float, list[int]]:
    """Seconds, and the reused tokens of each request."""
    lines = subprocess.run([program, "--trace", str(file), "--model", model.layout, "--bytes", str(blocks * model.block_bytes),
                            "--in-flight", str(in_flight), "--batch", str(CHUNK), "--check", *model.more],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    return float(lines[0]), [int(line.split()[1]) for line in lines[1:]]


def theirs(requests: list, model: Model, blocks: int, in_flight: int) -> tuple[float, list[int]]:
    """The same of vLLM, without the time of hashing."""
    manager = vllm_blocks.BlockManager(blocks, in_flight, model.groups, CHUNK)
    hits, seconds = [], 0.0
    for prompt, answer in requests:
        request = manager.request(prompt)
        begin = time.perf_counter()
        hits.append(manager.run(request, answer))
        seconds += time.perf_counter() - begin
    return seconds, hits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="bench/replay_groups")
    parser.add_argument("--data", type=Path, required=True, help="the directory of traces/ and chats/")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--traces", nargs="+", choices=BLOCKS, default=list(BLOCKS), help="of the recorded ones")
    parser.add_argument("--requests", type=int, default=500, help="of a trace, at most")
    parser.add_argument("--pairs", type=int, default=20, help="of timed replays")
    given = parser.parse_args()
    version = vllm_blocks.load()
    if version is None:
        print("SKIPPED: vLLM is not installed; bench/compare/block_managers.txt names its version")
        return 0
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests"
        for trace, size, in_flight in [(trace, size, n) for trace in given.traces for size in BLOCKS[trace]
                                       for n in ((1, 8) if trace == "dialogues" else (1,))]:
            requests = requests_of(Setting(trace, size, in_flight), given.data, given.requests)
            write(file, requests)
            for name in given.models:
                model, blocks = MODELS[name], MODELS[name].blocks(size)
                hits = theirs(requests, model, blocks, in_flight)[1]
                own = ours(given.program, file, model, blocks, in_flight)[1]
                fewer = sum(one // BLOCK < other // BLOCK for one, other in zip(own, hits, strict=True))
                wrong += 0 if model.groups.states else fewer
                ratios = []
                for pair in range(given.pairs):
                    one = ours(given.program, file, model, blocks, in_flight)[0] if pair % 2 == 0 else 0.0
                    other = theirs(requests, model, blocks, in_flight)[0]
                    ratios.append((one or ours(given.program, file, model, blocks, in_flight)[0]) / other)
                rows.append(f"| {name} | {trace} | {blocks * model.block_bytes >> 20:,} | {in_flight} | {len(requests):,} | "
                            f"{sum(len(prompt) for prompt, _ in requests):,} | {sum(hits):,} | {sum(own):,} | {fewer} | "
                            f"{spread(ratios, 4) if ratios else '-'} |")
                print(rows[-1], file=sys.stderr, flush=True)
    print(f"vLLM {version}. Reused tokens of the prompts, and our time over vLLM's (median and range of {given.pairs} pairs):\n")
    print("| model | trace | MiB | in flight | requests | prompt tokens | vLLM | ours | requests with fewer blocks | time, ratio |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---|\n" + "\n".join(rows))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
