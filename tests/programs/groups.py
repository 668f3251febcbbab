#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""generate and chat with models whose layers keep different things: windows and recurrent states. What is reused has the
bits of what is computed; contexts are saved; a tier gives pages, windows and states to the next process.

    groups.py GENERATE CHAT MODEL
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from worded_checkpoint import with_words

generate, chat, model = sys.argv[1:4]
CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"
MODELS = ["qwen35", "lfm2", "granitehybrid-experts", "gemma3", "gpt-oss", "gemma4"]
RECURRENT = MODELS[:3]


def run(program, *flags, text="", fails=False):
    done = subprocess.run([program, *map(str, flags)], input=text, capture_output=True, text=True, timeout=240)
    assert (done.returncode != 0) == fails, (flags, done.returncode, done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        prompt = [(7 * i + i * i) % 70 + 3 for i in range(90)]
        listed = lambda ids: ",".join(map(str, ids))

        for one in MODELS:
            path = CHECKPOINTS / one

            def answer(ids, *flags, most=6):
                return json.loads(run(generate, "--model", path, *(["--ids", listed(ids)] if ids else []), "--page", 16, "--json",
                                      "--ignore-eos", "--max-tokens", most, *flags))

            def logits(*flags):
                run(generate, "--model", path, "--ids", listed(prompt), "--page", 16, "--max-tokens", 1, "--logits", directory / "rows",
                    *flags)
                return (directory / "rows").read_bytes()

            cold = answer(prompt, "--no-cache")
            warm = answer(prompt, "--warm-ids", listed(prompt[:70]))
            # A state is after a whole page; keys and values are found inside a page too.
            assert warm["ids"] == cold["ids"] and warm["reused"] == (64 if one in RECURRENT else 70), (one, cold, warm)
            rows = logits()
            reused = logits("--warm-ids", listed(prompt[:70]))
            assert rows[-len(reused):] == reused and len(reused) < len(rows), one

            file = directory / f"{one}.context"
            begun = answer(prompt, "--save", file, most=2)
            rest = answer([], "--load", file, most=4)
            assert begun["ids"] + rest["ids"] == cold["ids"], (one, begun, rest, cold)
            assert rest["prefilled"] == 1, rest

            tier = ["--tier", f"lmdb:{directory / one}"]
            first, second = answer(prompt, *tier), answer(prompt, *tier)
            assert first["from_tier"] == 0 and second["from_tier"] == 80, (one, first, second)
            assert first["ids"] == second["ids"] == cold["ids"], (one, first, second)

            coded = answer(prompt, "--codec", "int8"), answer(prompt, "--codec", "int8", "--warm-ids", listed(prompt[:70]))
            assert coded[0]["ids"] == coded[1]["ids"] and coded[1]["reused"] == 64, (one, coded)
            beams = [answer(prompt, "--beams", 3, *flags) for flags in ([], ["--warm-ids", listed(prompt[:70])])]
            assert beams[0]["answers"] == beams[1]["answers"], (one, beams)

            if one in RECURRENT or one == "gemma4":
                for mode in "chunks", "baseline":
                    words = run(generate, "--model", path, "--ids", "1", "--mode", mode, fails=True)
                    assert ("recurrent layers" if one in RECURRENT else "layers keep different") in words, words
                words = run(generate, "--model", path, "--ids", "5", "--max-tokens", "0", "--codec", "int9", fails=True)
                assert "int9" in words, words

        for one in "qwen35", "gemma3":
            path = directory / f"{one}-words"
            with_words(CHECKPOINTS / one, Path(model), path)
            said = run(chat, "--model", path, "--demo", "--max-tokens", 6, "--page", 16)
            assert "A hit equals a miss, bit for bit." in said, said
            talk = lambda *flags, text: run(chat, "--model", path, "--page", 16, "--max-tokens", 6, *flags, text=text)
            talk("--save", directory / "talk", text="Who is Ella?\n")
            on = talk("--load", directory / "talk", text="Why?\n")
            whole = talk(text="Who is Ella?\nWhy?\n")
            last = lambda text: [line for line in text.splitlines() if not line.startswith("[")][-1]
            assert last(on) == last(whole), (on, whole)
    print("groups.py: all holds")


main()
