#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Greedy answers on a GGUF file of the architectures llama and gemma3, beside llama.cpp on the same weights in F32.

    greedy_real.py GENERATE MODEL TEXTS [--quick]

GENERATE is the example program `generate`, TEXTS a folder of English texts. 64 tokens follow 20 questions, as chats
where the file has a template, and 4 longer prompts of up to 2,000 tokens; llama.cpp is the package xllamacpp. Where two answers differ, the float64 reference of gguf_reference.py
decides. Exit status 1 if it sides with llama.cpp. Needs: numpy, gguf, xllamacpp.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

try:
    import gguf
    import numpy as np
    import xllamacpp
except ImportError as missing:
    print(f"SKIPPED: {missing}; pip install numpy gguf xllamacpp")
    sys.exit(0)

from gguf_reference import reference_logits

QUESTIONS = ["What is the capital of France?", "Write a haiku about autumn.", "Why is the sky blue?", "How do I boil an egg?",
             "List three prime numbers.", "Translate 'good morning' to Spanish.", "What is 17 plus 25?", "Tell me a joke.",
             "Who wrote Hamlet?", "Explain photosynthesis to a child.", "Name a mammal that can fly.", "What is a hash table?",
             "Give me a recipe for pancakes.", "What causes tides?", "How many continents are there?", "What is DNA?",
             "Describe the colour red.", "Write a limerick about a cat.", "When did World War II end?", "What is a prime?"]


def write_f32(source, target):
    """The same model with every weight in F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind, inner = field.types[0], field.types[-1]
        writer.add_key_value(field.name, field.contents(), kind, inner if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Peer:
    """llama.cpp with F32 pages and without flash attention."""

    def __init__(self, path, context):
        options = xllamacpp.CommonParams()
        options.model.path = str(path)
        options.n_ctx = options.n_batch = options.n_ubatch = context
        options.n_parallel, options.warmup, options.verbosity = 1, False, 0
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 2
        options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(options)

    def ask(self, where, body):
        request = urllib.request.Request(f"{self.server.listening_address}/{where}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def greedy(self, ids, count):
        return self.ask("completion", {"prompt": ids, "n_predict": count, "temperature": 0, "top_k": 1, "return_tokens": True,
                                       "cache_prompt": False, "ignore_eos": True})["tokens"]

    def tokenize(self, text, special):
        return self.ask("tokenize", {"content": text, "add_special": special, "parse_special": special})["tokens"]


class Ours:
    def __init__(self, program, model):
        self.command = [program, "--model", model, "--threads", "2", "--ignore-eos", "--json"]

    def greedy(self, ids, count):
        command = [*self.command, "--ids", ",".join(map(str, ids)), "--max-tokens", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"generate: {done.stderr}")
        return json.loads(done.stdout)["ids"]


def compare_answers(name, model, mine, theirs, prompt):
    """Whether the answers agree, or the reference sides with ours where they part."""
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), None)
    if at is None:
        return True
    row = reference_logits(model, gguf, [[*prompt, *mine[:at]]], 1)[0][-1]
    ours = row[mine[at]] > row[theirs[at]]
    print(f"{name}: token {at + 1} differs, {mine[at]} and {theirs[at]}; the reference has {row[mine[at]]:.6f} and "
          f"{row[theirs[at]]:.6f}, {'as ours' if ours else 'NOT as ours'}")
    return bool(ours)


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("program")
    parse.add_argument("model")
    parse.add_argument("texts", type=pathlib.Path)
    parse.add_argument("--quick", action="store_true", help="three chat prompts alone")
    f = parse.parse_args()
    ours = Ours(f.program, f.model)
    with tempfile.TemporaryDirectory() as folder:
        write_f32(f.model, f"{folder}/f32.gguf")
        peer = Peer(f"{folder}/f32.gguf", 2200)
        text = "".join(path.read_text(errors="replace") for path in sorted(f.texts.glob("*.txt")))
        dice = random.Random(1)

        def passage(tokens):
            at = dice.randrange(len(text) - 12 * tokens)
            return peer.tokenize(text[at:at + 12 * tokens], False)[:tokens]

        chat = gguf.GGUFReader(f.model).get_field("tokenizer.chat_template") is not None
        asked = QUESTIONS[:3 if f.quick else 20]
        chats = [peer.tokenize(question + "\n", True) for question in asked] if not chat else [
            peer.tokenize(f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{question}"
                               "<|im_end|>\n<|im_start|>assistant\n", True) for question in asked]
        longer = [] if f.quick else [passage(n) for n in (500, 1000, 1500, 2000)]
        agree = equal = 0
        for i, prompt in enumerate([*chats, *longer]):
            mine, theirs = ours.greedy(prompt, 64), peer.greedy(prompt, 64)
            equal += mine == theirs
            agree += compare_answers(f"prompt {i + 1} of {len(prompt)} tokens", f.model, mine, theirs, prompt)
        count = len(chats) + len(longer)
        print(f"64 greedy tokens after {count} prompts: {equal} equal llama.cpp's in F32, {agree} equal them or the reference sides "
              "with ours")
    return 0 if agree == count else 1


if __name__ == "__main__":
    sys.exit(main())
