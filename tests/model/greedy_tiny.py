#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Greedy answers of tiny models of any architecture, beside llama.cpp on the same GGUF file.

    greedy_tiny.py GENERATE CHECKPOINTS FILE.gguf...

GENERATE is the example program `generate`. Each file is named after one of CHECKPOINTS (tests/data/checkpoints) and has
its weights with the words of another model, as programs/worded_checkpoint.py writes them and llama.cpp's converter reads
them: rows of the vocabulary are repeated, so tokens count as equal if their rows are. 24 tokens follow 11 prompts of 3 to
1,000 tokens. Exit status 1 if a token differs. Needs: numpy, gguf, xllamacpp.
"""
import json
import random
import sys
from pathlib import Path

from greedy_real import Ours, Peer, gguf


def main():
    program, checkpoints, *files = sys.argv[1:]
    all_equal = True
    for file in map(Path, files):
        config = json.loads((Path(checkpoints) / file.stem / "config.json").read_text())
        rows = config.get("text_config", config)["vocab_size"]
        words = len(gguf.GGUFReader(file).get_field("tokenizer.ggml.tokens").data)
        peer, ours, dice = Peer(file, 1100), Ours(program, file), random.Random(5)
        equal, parted = 0, []
        lengths = (3, 17, 40, 64, 100, 150, 200, 333, 500, 777, 1000)
        for length in lengths:
            prompt = [dice.randrange(3, words) for _ in range(length)]
            mine, theirs = ([token % rows for token in one.greedy(prompt, 24)] for one in (ours, peer))
            equal += mine == theirs
            if mine != theirs:
                parted.append((length, next(i for i, pair in enumerate(zip(mine, theirs)) if pair[0] != pair[1])))
        print(f"{file.stem}: {equal} of {len(lengths)} answers are llama.cpp's"
              + "".join(f"; after {length} tokens the {at + 1}. differs" for length, at in parted), flush=True)
        all_equal = all_equal and not parted
        del peer
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
