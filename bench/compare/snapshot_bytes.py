#!/usr/bin/env python3
"""Where to leave snapshots of recurrent states: their bytes, and the tokens that prompts reuse, in unlimited memory.

    build/peers/bin/python bench/compare/snapshot_bytes.py build/bench/bench/replay_groups --data DATA

Qwen3.5 9B with pages of 16 tokens, without a model. The share is of the bytes of full-attention pages. Reused tokens are
relative to those with a snapshot at the end of each page.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from block_managers import BLOCK, RECORDED, Setting, requests_of, write
except ImportError as missing:
    print(f"SKIPPED: {missing}; {__doc__.splitlines()[2].strip()}")
    sys.exit(0)

PAGE, STATE = BLOCK * 8 * 2 * 4 * 256 * 2, 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
POLICIES = ("", "--no-ends", "--no-branches", "--before-end 0", "--before-end 64", "--every 99", "--every 512", "--every 1536", "--every 3072",
            "--doubling", "--every 1")


def replay(program: str, file: Path, size: int, policy: str) -> tuple[int, int, int, int]:
    """Reused tokens, bytes of full attention, bytes of states, and snapshots."""
    lines = subprocess.run([program, "--trace", str(file), "--model", "qwen3.5-9b", "--bytes", str(size), "--groups", *policy.split()],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    full, state = (line.split() for line in lines[-3:-1])
    return sum(int(line.split()[1]) for line in lines[1:-3]), int(full[1]), int(state[1]), int(state[3])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="bench/replay_groups")
    parser.add_argument("--data", type=Path, required=True, help="the directory of traces/ and chats/")
    parser.add_argument("--requests", type=int, default=200, help="of a trace, at most")
    given = parser.parse_args()
    print("| trace | snapshots at | reused | of those with one a page | snapshots | share of the pages' bytes |\n|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests"
        for trace in RECORDED:
            requests = requests_of(Setting(trace, 1 << 40), given.data, given.requests)
            write(file, requests)
            size = sum(len(prompt) // BLOCK + 2 for prompt, _ in requests) * (PAGE + STATE)
            most = replay(given.program, file, size, "--every 1")[0]
            for policy in POLICIES:
                reused, full, state, count = replay(given.program, file, size, policy)
                print(f"| {trace} | `{policy or 'default'}` | {reused:,} | {reused / most:.4f} | {count:,} | {state / full:.1%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
