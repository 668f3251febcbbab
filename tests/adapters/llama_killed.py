#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two processes of examples/llama_chat keep their pages in one LMDB directory, and one of them is killed again and again: the other
one and a later one give the answers that a process without a tier gives.

    tests/adapters/llama_killed.py PROGRAM MODEL [KILLS]
"""
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# Each token of the answers is at least 1.7 ahead of the next in SmolLM2's logits. Restored tokens may lie in other cells of the
# context, and llama.cpp adds in the order of cells: that was seen to move a logit by 0.2.
QUESTIONS = [f"What is the capital of {name}?" for name in ("Japan", "Italy", "France", "Egypt")]


def command(program: str, model: str, *more: str) -> list[str]:
    return [program, model, "--answer", "12", "--cells", "2048", *more]


def talk(words: list[str], *names: str) -> tuple[list[str], int]:
    """Holds the conversation once for each name, in one process. Returns the answers, and the tokens that were restored."""
    lines = [line for name in names for line in (f"/talk {name}", *QUESTIONS)]
    done = subprocess.run(words, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"llama_chat ended with {done.returncode}: {done.stderr[-300:]}")
    return done.stdout.splitlines(), sum(map(int, re.findall(r"(\d+) restored", done.stderr)))


def main() -> int:
    program, model, kills = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 8
    if not Path(model).exists():
        print(f"SKIPPED: there is no {model}; tools/fetch_model.py downloads it")
        return 0
    right, _ = talk(command(program, model), "a")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        words = command(program, model, "--tier", f"lmdb:{folder}")
        held, stop = [], threading.Event()

        def hold() -> None:
            while not stop.is_set():
                held.append(talk(words, "a", "b")[0])

        other = threading.Thread(target=hold)
        other.start()
        for _ in range(kills):
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True) as victim:
                victim.stdin.write("\n".join(QUESTIONS) + "\n")
                victim.stdin.flush()
                time.sleep(dice.uniform(0.1, 2.0))
                victim.kill()
        stop.set()
        other.join()
        last, restored = talk(words, "a")
    wrong = sum(answers != right + right for answers in held) + (last != right)
    print(f"{kills} kills, {len(held)} conversations of the other process, {restored} tokens restored at the end, {wrong} wrong")
    return 1 if wrong or restored == 0 or not held else 0


if __name__ == "__main__":
    sys.exit(main())
