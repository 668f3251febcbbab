#!/usr/bin/env python3
"""Conversations that take turns in a context which holds fewer: a program that embeds libllama, with the prefix cache under it and
without, and llama-server with its cache in memory. The same tokens, the same cells, the same bytes for both caches. Prints the tokens
that were evaluated and the milliseconds to the first token, by turn, and the ratios.

    bench/compare/llama_conversations.py --program build/bench/bench/llama --llama-server PATH --model FILE.gguf
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from server import Server


class Words:
    """The token ids of bench/llama.cpp."""

    def __init__(self, seed: int = 7):
        self.state = seed

    def __call__(self, count: int) -> list[int]:
        made = []
        for _ in range(count):
            self.state = self.state * 48271 % 2147483647
            made.append(self.state % 30000)
        return made


def ours(flags, *more) -> list[dict]:
    command = [str(word) for word in (
        flags.program, "conversations", "--model", flags.model, "--cells", flags.cells, "--talks", flags.talks, "--turns", flags.turns,
        "--slots", flags.slots, "--question", flags.question, "--answer", flags.answer, "--cache-mib", flags.mebibytes,
        "--threads", flags.threads, "--edits", flags.edits, *more)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}: {done.stderr[-300:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def theirs(flags) -> list[dict]:
    rows, words, talks = [], Words(), [[] for _ in range(flags.talks)]
    with Server(flags.llama_server, flags.model, flags.threads, flags.cells, "f16",
                ("-np", flags.slots, "-kvu", "--cache-ram", flags.mebibytes, "-b", 512)) as server:
        for turn in range(flags.turns):
            for talk, own in enumerate(talks):
                if flags.edits and turn + 1 == flags.turns and len(own) > flags.edits:
                    own[len(own) // 2] = 5
                own += words(flags.question)
                done = server.complete(own, flags.answer)
                rows.append({"turn": turn, "talk": talk, "tokens": len(own), "evaluated": done["timings"]["prompt_n"],
                             "ms": done["seconds"] * 1000})
                own += done["tokens"]
    return rows


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--program", type=Path, required=True)
    parse.add_argument("--llama-server", type=Path)
    parse.add_argument("--model", type=Path, required=True)
    for name, value in {"cells": 5120, "talks": 12, "turns": 10, "slots": 3, "question": 150, "answer": 16, "mebibytes": 256,
                        "threads": 2, "edits": 0}.items():
        parse.add_argument(f"--{name}", type=int, default=value)
    parse.add_argument("--plain", action="store_true", help="runs the program without a cache too, which evaluates all tokens")
    flags = parse.parse_args()
    runs = {"the cache": ours(flags)}
    if flags.plain:
        runs["no cache"] = ours(flags, "--plain")
    if flags.llama_server:
        runs["llama-server"] = theirs(flags)
    for who, rows in runs.items():
        for turn in range(flags.turns):
            of = [row for row in rows if row["turn"] == turn]
            print(f"{who}, turn {turn + 1}: {sum(row['evaluated'] for row in of)} of {sum(row['tokens'] for row in of)} tokens evaluated, "
                  f"first token after {statistics.median(row['ms'] for row in of):.0f} ms (median of {len(of)})")
        print(f"{who}: {sum(row['evaluated'] for row in rows)} tokens evaluated in all")
    mine = runs["the cache"]
    print(f"all tokens / the cache: {sum(row['tokens'] for row in mine) / sum(row['evaluated'] for row in mine):.2f}")
    for who in list(runs)[1:]:
        more = [row["evaluated"] for row in runs[who]]
        worse = sum(a["evaluated"] > b for a, b in zip(mine, more))
        print(f"{who} / the cache: {sum(more) / sum(row['evaluated'] for row in mine):.2f} times the tokens; more tokens than {who} in "
              f"{worse} of {len(mine)} turns")


if __name__ == "__main__":
    main()
