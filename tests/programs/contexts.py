#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""generate and chat with each codec, as a command line starts them: a context that is saved by one process and loaded by
another goes on with the same bits, and a file of another model, a cut file or a changed file is refused by its field.

    contexts.py GENERATE CHAT MODEL
"""
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

generate, chat, model = sys.argv[1:4]
CODECS = ["f32", "bf16", "int8", "int4", "hadamard_int4", "codebook_5", "codebook_3", "k=int8,v=int4", "v=codebook_2",
          "k=delta_3,v=codebook_3"]
IDS = [3 + one * one % 251 for one in range(203)]  # of a page and a part, with every page size
WORDS = ("f32, bf16, f16, int8, int8_grouped, int4, int4_per_channel, hadamard_int8, hadamard_int4, codebook_5, "
         "codebook_4, codebook_3, codebook_2, delta_4, delta_3, delta_2")


def run(program, *flags, text="", fails=False):
    done = subprocess.run([program, *flags], input=text, capture_output=True, text=True, timeout=240)
    assert (done.returncode != 0) == fails, (flags, done.returncode, done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


def answer(*flags):
    return json.loads(run(generate, "--model", model, "--json", "--ignore-eos", *flags))


def listed(ids):
    return ",".join(map(str, ids))


def same_bits(directory, codec):
    """An answer of 16 tokens at once, or with a restart after 7, drawn at a temperature; then a prompt after each."""
    context, once, twice, rows = (str(directory / name) for name in ("context", "once", "twice", "rows"))
    drawn = ["--codec", codec, "--temperature", "0.8", "--seed", "7"]
    whole = answer(*drawn, "--ids", listed(IDS), "--max-tokens", "16", "--save", once)
    first = answer(*drawn, "--ids", listed(IDS), "--max-tokens", "7", "--save", context)
    rest = answer("--codec", codec, "--load", context, "--max-tokens", "9", "--save", twice)
    assert first["ids"] + rest["ids"] == whole["ids"], (codec, whole["ids"], first["ids"], rest["ids"])
    assert rest["reused"] == len(IDS) + 6 and rest["prefilled"] == 1, (codec, rest)

    # The logits of what comes next: after a file of one process, of two, and without a file.
    def logits(*flags):
        answer("--codec", codec, "--max-tokens", "1", "--logits", rows, *flags)
        return Path(rows).read_bytes()
    at_once = logits("--load", once, "--ids", "5,6,7")
    assert len(at_once) % 16 == 0 and at_once == logits("--load", twice, "--ids", "5,6,7"), codec  # four rows
    assert logits("--ids", listed(IDS + whole["ids"] + [5, 6, 7])).endswith(at_once), codec
    # Saved without an answer: the last token runs again.
    assert answer(*drawn, "--ids", listed(IDS), "--max-tokens", "0", "--save", context)["ids"] == []
    again = answer("--codec", codec, "--load", context, "--max-tokens", "4")
    assert again["ids"] == whole["ids"][:4], (codec, again, whole)


def another_model(directory):
    """The same model with another bit in its weights."""
    other = directory / "other"
    shutil.copytree(model, other)
    weights = other / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.chmod(0o600)
    weights.write_bytes(data)
    return str(other)


def refused(directory, other):
    context = directory / "context"
    answer("--ids", listed(IDS), "--max-tokens", "3", "--save", str(context))
    good = context.read_bytes()
    says = lambda *flags: run(generate, "--max-tokens", "1", *flags, fails=True)
    assert "codec: the record was made with" in says("--model", model, "--load", str(context), "--codec", "int8")
    assert "weights: the record was made with" in says("--model", other, "--load", str(context))
    assert "page_tokens: " in says("--model", model, "--load", str(context), "--page", "32")
    assert "cannot be opened" in says("--model", model, "--load", str(directory / "none"))
    context.write_bytes(good[:-1])
    assert "total_bytes: " in says("--model", model, "--load", str(context))
    context.write_bytes(b"")
    says("--model", model, "--load", str(context))
    seed = 20261128
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(12):
        at = draw.randrange(len(good))
        context.write_bytes(good[:at] + bytes([good[at] ^ 1 << draw.randrange(8)]) + good[at + 1:])
        said = says("--model", model, "--load", str(context))
        assert re.match(r"generate: --load: \S+: \w+: ", said), (at, said)
    context.write_bytes(good)
    assert "excludes" in says("--model", model, "--load", str(context), "--no-cache")
    assert "the answer in" not in run(generate, "--model", model, "--load", str(context), "--prompt", " Yes.")
    assert "--prompt, --ids, --load or --perplexity is needed" in says("--model", model)
    ended = ["--model", model, "--load", str(context)]
    turn = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"
    run(generate, "--model", model, "--prompt", turn % "Thank you!", "--max-tokens", "100", "--save", str(context))
    assert f"--load: the answer in {context} has ended" in run(generate, *ended, fails=True)
    assert run(generate, *ended, "--prompt", "\n" + turn % "Hello.").strip() != ""


def flags(program):
    for wrong in ("int5", "k=int8,k=int8", "k=int8,v="):
        said = run(program, "--model", model, "--codec", wrong, fails=True)
        assert WORDS in said or "k=NAME,v=NAME" in said, said
    assert WORDS in " ".join(run(program, "--help").split())
    said = run(program, "--model", model, "--page", "16", "--codec", "int4_per_channel", *(
        ["--ids", "1"] if program == generate else []), fails=True)
    assert "--page: int4_per_channel takes a multiple of 32 tokens, not 16" in said, said


def talks(directory, codec):
    """A chat of four turns at once, and with a restart after two: the same answers, and as much reused."""
    lines = ["Hello.", "What is the first note?", "And the second?", "Thank you."]
    talk = lambda turns, *more: run(chat, "--model", model, "--codec", codec, "--max-tokens", "12", *more,
                                    text="".join(line + "\n" for line in turns))
    untimed = lambda text: re.sub(r"after [0-9.]+ ms", "", text)
    whole = untimed(talk(lines, "--system", "You answer."))
    file = str(directory / "chat")
    first = untimed(talk(lines[:2], "--system", "You answer.", "--save", file))
    rest = untimed(talk(lines[2:], "--load", file))
    assert first + rest == whole, (codec, whole, first + rest)
    return file


def chats_refused(file, other):
    good = Path(file).read_bytes()
    says = lambda *more: run(chat, "--model", model, *more, text="Hello.\n", fails=True)
    assert "weights: " in run(chat, "--model", other, "--load", file, fails=True)
    length = int.from_bytes(good[8:16], "little")
    for at, field in ((0, "magic"), (8, "total_bytes"), (24, "messages"), (50, "messages"), (64, "magic"),
                      (64 + length - 1, "total_bytes|speaking|part"), (64 + length + 3, "messages")):
        Path(file).write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1:])
        said = says("--load", file)
        assert re.search(r"--load: \S+: (%s)\b" % field, said), (at, said)
    for cut in (0, 7, 40, 100, len(good) - 1):
        Path(file).write_bytes(good[:cut])
        assert re.search(r"--load: \S+: (magic|total_bytes)\b", says("--load", file)), cut
    Path(file).write_bytes(good)
    assert "excludes" in says("--load", file, "--system", "x")


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        other = another_model(directory)
        for program in (generate, chat):
            flags(program)
        for codec in CODECS:
            same_bits(directory, codec)
        refused(directory, other)
        for codec in ("f32", "int8", "k=hadamard_int4,v=codebook_3"):
            file = talks(directory, codec)
            if codec == "f32":
                chats_refused(file, other)
    print("saved contexts go on with the same bits, with", len(CODECS), "codecs")


main()
