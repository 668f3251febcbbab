#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""generate and chat in their modes: baseline and prefix say the same words, chunks place documents at any position, and
a tier gives them to the next process.

    modes.py GENERATE CHAT MODEL
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

generate, chat, model = sys.argv[1:4]
TEXTS = ["The library is closed on Mondays, because the mill needs all of its water then. " * 3,
         "Ella has a kite, and the kite is red, and it flies over the harbour all day long. " * 3,
         "Who built the tower is forgotten, but the farmer says that it was his grandfather. " * 3]


def run(program, *flags, text="", fails=False):
    done = subprocess.run([program, "--model", model, *flags], input=text, capture_output=True, text=True, timeout=240)
    assert (done.returncode != 0) == fails, (flags, done.returncode, done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        files = [directory / f"{i}.txt" for i in range(3)]
        for file, text in zip(files, TEXTS):
            file.write_text(text)

        def answer(*flags, order=(0, 1, 2)):
            documents = [word for i in order for word in ("--document", str(files[i]))]
            return json.loads(run(generate, *documents, "--prompt", "Who?", "--max-tokens", "6", "--page", "16", "--json", *flags))

        cold, exact = answer("--mode", "baseline"), answer()
        assert cold["ids"] == exact["ids"] and not cold["approximate"] and not exact["approximate"], (cold, exact)
        assert cold["prefilled_tokens"] == exact["prefilled_tokens"] == cold["prompt_tokens"], (cold, exact)
        full = answer("--mode", "chunks", "--recompute", "full")
        assert full["ids"] == cold["ids"] and not full["approximate"], full
        for codec in "f32", "int8":
            for recompute in "none", "head:4", "boundary:4", "blend:10", "gradual:10":
                one = answer("--mode", "chunks", "--recompute", recompute, "--codec", codec)
                assert one["approximate"] and one["approximate_tokens"] > one["prompt_tokens"] / 3, one
                assert (one["recomputed_tokens"] == 0) == (recompute == "none"), one
                parts = [one[kind + "_tokens"] for kind in ("exact", "approximate", "recomputed", "prefilled")]
                assert sum(parts) == one["prompt_tokens"], one
                assert abs(one["kv_reuse_ratio"] - (parts[0] + parts[1]) / sum(parts)) < 1e-9, one
        few = answer("--mode", "chunks", "--chunk-size", "40", "--boundary-window", "8", "--overlap", "4", "--sinks", "2")
        assert few["recomputed_tokens"] > 3 * 16, few

        tier = ["--mode", "chunks", "--tier", f"lmdb:{directory / 'tier'}"]
        first = answer(*tier, order=(2, 0, 1))
        again, other = answer(*tier, order=(2, 0, 1)), answer(*tier, order=(1, 2, 0))
        assert first["from_tier"] == 0 and again["from_tier"] > 0 and other["from_tier"] > 0, (first, again, other)
        assert again["ids"] == first["ids"] and other["approximate_tokens"] > 0, (first, again)

        documents = [word for file in files for word in ("--document", str(file))]
        talk = lambda *flags: run(chat, *documents, "--max-tokens", "6", *flags, text="Who?\nWhy?\n")
        assert talk("--mode", "chunks").count("[approximate: ") == 2
        words = lambda said: [line for line in said.splitlines() if not line.startswith("[")]
        assert words(talk()) == words(talk("--mode", "baseline")) and "approximate" not in talk()

        for program, flags, word in ((generate, ["--ids", "1", "--mode", "chunks", "--save", "x"], "--mode"),
                                     (generate, ["--ids", "1", "--document", str(files[0]), "--load", "x"], "--document"),
                                     (generate, ["--ids", "1", "--document", str(directory / "none")], "does not exist"),
                                     (generate, ["--ids", "1", "--chunk-size", "4"], "requires --document"),
                                     (chat, ["--mode", "some"], "--mode"), (chat, ["--recompute", "head:0"], "head:ROWS"),
                                     (chat, ["--load", "x", *documents], "excludes")):
            said = run(program, *flags, fails=True)
            assert word in said, (flags, said)
    print("modes.py: three modes, five strategies, two codecs")


main()
