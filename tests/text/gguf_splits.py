# SPDX-License-Identifier: MIT
"""Compares how texts are split with llama.cpp, for every name of `tokenizer.ggml.pre` that the library knows.

    python tests/text/gguf_splits.py PROGRAM [--data FOLDER] [--only NAME ...]

PROGRAM: gguf_facts of the build. Each name gets a tiny model, and both readers the same texts (mixed scripts, digits,
spaces, signs, apostrophes, and FOLDER/text/*.txt). The vocabulary merges every pair of bytes of the texts, in an order by
chance, so that a split at another place gives other tokens, and has words that no merge makes, which some names take whole. Needs the packages gguf, numpy and xllamacpp
(tests/model/requirements.txt).
"""
import argparse
import json
import pathlib
import random
import re
import subprocess
import tempfile
import urllib.request

import gguf
import numpy
import xllamacpp

ROOT = pathlib.Path(__file__).parents[2]
SEED = 5


def names() -> list[str]:
    """Those of gguf_splits."""
    source = (ROOT / "include/kvcache/text/gguf_splits.hpp").read_text()
    table = source[source.index("inline constexpr gguf_split gguf_splits[]"):]
    return re.findall(r'^    \{"([^"]+)",', table[: table.index("\n};")], re.M)


def texts(data: pathlib.Path | None) -> list[str]:
    chosen = random.Random(SEED)
    parts = ["word", "Word", "WORD", "wOrD", "it's", "WE'LL", "I’m", "12", "1234567", "٣٤", "½", "日本語", "한국어", "संस्कृत",
             "naïve", "Ünïcode", "e\u0301t\u0327", "ßſ", "Ǆ", "hello,world", "a.b", "(x)", "$5", "<=>", "`code`", "~^|", "…", "。", "،",
             "😀", "👨‍👩‍👧", "_under_", "#tag", "//", "\n", "\r\n", "\t", "  ", "   ", " ", "\u00a0", "\u3000", "\n\n ", "¡hola!"]
    lines = ["".join(chosen.choice(parts) + chosen.choice(["", " ", " "]) for _ in range(chosen.randint(1, 14)))
             for _ in range(400)]
    if data is not None:
        for file in sorted((data / "text").glob("*.txt")):
            lines += [line for line in file.read_text(errors="ignore").split("\n") if line][:100]
    return lines


def vocabulary_of(lines: list[str]) -> tuple[list[str], list[str]]:
    """Tokens and merges: all bytes, and pairs of them, as byte-level BPE spells them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letter = {byte: chr(byte) for byte in shown}
    for byte in range(256):
        letter.setdefault(byte, chr(256 + sum(other not in shown for other in range(byte))))
    pairs = {pair for line in lines for pair in zip(line.encode(), line.encode()[1:])}
    order = sorted(pairs)
    random.Random(SEED).shuffle(order)
    merges = [f"{letter[a]} {letter[b]}" for a, b in order]
    tokens = [letter[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in merges]
    # Tokens that no merge makes, of three bytes or more: some names take a piece that is a token as it is.
    whole = {word for line in lines for word in re.findall(r"\s?\w{3,}|[^\w\s]{3,}", line)}
    spelled = {"".join(letter[byte] for byte in word.encode()) for word in whole}
    return tokens + sorted({word for word in spelled if len(word) > 2} - set(tokens)), merges


def write(path: pathlib.Path, pre: str, tokens: list[str], merges: list[str]) -> None:
    """A llama of one layer with the vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in ((writer.add_block_count, 1), (writer.add_context_length, 512), (writer.add_embedding_length, 32),
                       (writer.add_feed_forward_length, 32), (writer.add_head_count, 1), (writer.add_head_count_kv, 1),
                       (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_dimension_count, 32),
                       (writer.add_vocab_size, len(tokens)), (writer.add_tokenizer_model, "gpt2"),
                       (writer.add_tokenizer_pre, pre), (writer.add_token_list, tokens), (writer.add_token_merges, merges),
                       (writer.add_token_types, [1] * len(tokens)), (writer.add_bos_token_id, 0), (writer.add_eos_token_id, 0)):
        add(value)
    weights = {"token_embd": (len(tokens), 32), "output": (len(tokens), 32), "output_norm": (32,), "blk.0.attn_norm": (32,),
               "blk.0.ffn_norm": (32,)}
    weights |= {f"blk.0.{name}": (32, 32) for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    for name, shape in weights.items():
        writer.add_tensor(name + ".weight", numpy.full(shape, 0.01, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("program", type=pathlib.Path)
    arguments.add_argument("--data", type=pathlib.Path)
    arguments.add_argument("--only", metavar="NAME", nargs="+", help="those names alone")
    chosen = arguments.parse_args()
    lines, failed = texts(chosen.data), 0
    tokens, merges = vocabulary_of(lines)
    for pre in chosen.only or names():
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.gguf"
            write(model, pre, tokens, merges)
            # The first one again with the tokens that the name adds, which the file does not say.
            asked = "".join(json.dumps({"text": line, "add_special": i == len(lines)}) + "\n"
                            for i, line in enumerate([*lines, lines[0]]))
            ours = subprocess.run([chosen.program, model, "texts"], input=asked, capture_output=True, text=True, check=True)
            got = [json.loads(line)["ids"] for line in ours.stdout.splitlines()]
            options = xllamacpp.CommonParams()
            options.model.path = str(model)
            options.n_ctx, options.n_parallel, options.warmup, options.verbosity = 256, 1, False, 0
            server = xllamacpp.Server(options)
            wrong = []
            for i, (line, ids) in enumerate(zip([*lines, lines[0]], got, strict=True)):
                body = json.dumps({"content": line, "add_special": i == len(lines), "parse_special": False}).encode()
                request = urllib.request.Request(server.listening_address + "/tokenize", body,
                                                 {"Content-Type": "application/json"})
                with urllib.request.urlopen(request) as answer:
                    theirs = json.load(answer)["tokens"]
                if theirs != ids:
                    wrong.append((line, theirs, ids))
            del server
        failed += bool(wrong)
        print(f"{pre:18} {len(lines)} texts, {sum(map(len, got))} tokens: {len(wrong)} differ", flush=True)
        for line, theirs, ids in wrong[:2]:
            print(f"    {line!r}\n      llama.cpp {theirs[:24]}\n      here      {ids[:24]}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
