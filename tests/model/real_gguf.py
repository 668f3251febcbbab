#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares this library's logits and answers on a GGUF file of the llama architecture with a float64 reference and llama.cpp.

    real_gguf.py GENERATE MODEL TEXTS [--quick]

GENERATE is the example program `generate`, TEXTS a folder of English texts. The reference computes in float64 with NumPy over
the weights that the package `gguf` dequantises. Shown: the largest relative error of the logits (of the largest of its row) over
all positions of 20 prompts; 64 greedy tokens after 20 chat prompts, and after 4 longer prompts of up to 2,000 tokens, beside
llama.cpp (package llama-cpp-python) on the same weights in F32. Where two answers differ, the reference decides. Exit status 1 if
a limit does not hold. Needs: numpy, gguf, llama-cpp-python.
"""

import argparse
import ctypes
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: {missing}; pip install numpy gguf llama-cpp-python")
    sys.exit(0)

LIMIT = 1e-4  # relative error of a logit
QUESTIONS = ["What is the capital of France?", "Write a haiku about autumn.", "Why is the sky blue?", "How do I boil an egg?",
             "List three prime numbers.", "Translate 'good morning' to Spanish.", "What is 17 plus 25?", "Tell me a joke.",
             "Who wrote Hamlet?", "Explain photosynthesis to a child.", "Name a mammal that can fly.", "What is a hash table?",
             "Give me a recipe for pancakes.", "What causes tides?", "How many continents are there?", "What is DNA?",
             "Describe the colour red.", "Write a limerick about a cat.", "When did World War II end?", "What is a prime?"]


class Model:
    """Weights of a GGUF file, dequantised to float64."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda name: reader.get_field(name).contents()
        self.layers, self.heads = field("llama.block_count"), field("llama.attention.head_count")
        self.kv_heads, self.eps = field("llama.attention.head_count_kv"), field("llama.attention.layer_norm_rms_epsilon")
        self.theta = field("llama.rope.freq_base")
        self.tokens = field("tokenizer.ggml.tokens")
        self.tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
        self.hidden = self.tensors["token_embd.weight"].shape[1]
        self.head_dim = self.hidden // self.heads

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.tensors[name]

    def rotate(self, x, first):
        """RoPE of neighbouring pairs, as the file stores q and k. (tokens, heads, head_dim)"""
        angle = np.outer(np.arange(first, first + len(x)), self.theta ** (-np.arange(0, self.head_dim, 2) / self.head_dim))
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out = np.empty_like(x)
        out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
        return out

    def logits(self, ids, rows=None):
        """Logits of the last `rows` positions (None: all). (rows, vocabulary)"""
        x, n = self.tensors["token_embd.weight"][ids], len(ids)
        mask = np.triu(np.full((n, n), -np.inf), 1)
        for i in range(self.layers):
            w = lambda part: self.tensors[f"blk.{i}.{part}.weight"]  # pylint: disable=cell-var-from-loop
            h = self.norm(x, f"blk.{i}.attn_norm.weight")
            q = self.rotate((h @ w("attn_q").T).reshape(n, self.heads, -1), 0)
            k = self.rotate((h @ w("attn_k").T).reshape(n, self.kv_heads, -1), 0)
            v = (h @ w("attn_v").T).reshape(n, self.kv_heads, -1)
            group = self.heads // self.kv_heads
            mixed = np.empty((n, self.heads, self.head_dim))
            for head in range(self.heads):
                scores = q[:, head] @ k[:, head // group].T / np.sqrt(self.head_dim) + mask
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                mixed[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, head // group]
            x = x + mixed.reshape(n, -1) @ w("attn_output").T
            h = self.norm(x, f"blk.{i}.ffn_norm.weight")
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        head = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return self.norm(x if rows is None else x[-rows:], "output_norm.weight") @ head.T


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
        import llama_cpp as cpp  # pylint: disable=import-outside-toplevel
        self.cpp = cpp
        quiet = cpp.llama_log_callback(lambda level, text, data: None)
        self.quiet = quiet
        cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        cpp.llama_backend_init()
        self.model = cpp.llama_model_load_from_file(str(path).encode(), cpp.llama_model_default_params())
        options = cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = context
        options.n_threads = options.n_threads_batch = 2
        options.type_k = options.type_v = 0  # F32
        if hasattr(options, "flash_attn_type"):
            options.flash_attn_type = 0
        self.context = cpp.llama_init_from_model(self.model, options)
        self.vocabulary = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(self.model))

    def greedy(self, ids, count):
        cpp, made, step = self.cpp, [], list(ids)
        cpp.llama_memory_clear(cpp.llama_get_memory(self.context), True)
        while len(made) < count:
            batch = cpp.llama_batch_get_one((cpp.llama_token * len(step))(*step), len(step))
            if cpp.llama_decode(self.context, batch) != 0:
                raise RuntimeError("llama_decode failed")
            row = np.ctypeslib.as_array(cpp.llama_get_logits_ith(self.context, -1), shape=(self.vocabulary,))
            made.append(int(row.argmax()))
            step = [made[-1]]
        return made

    def tokenize(self, text, special):
        cpp, data = self.cpp, text.encode()
        room = (cpp.llama_token * (len(data) + 8))()
        vocab = cpp.llama_model_get_vocab(self.model)
        count = cpp.llama_tokenize(vocab, data, len(data), room, len(room), False, special)
        return list(room[:count])


class Ours:
    def __init__(self, program, model):
        self.command = [program, "--model", model, "--threads", "2", "--ignore-eos", "--json"]

    def run(self, ids, count, logits=None):
        command = [*self.command, "--ids", ",".join(map(str, ids)), "--max-tokens", str(count)]
        if logits:
            command += ["--logits", logits]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"generate: {done.stderr}")
        return json.loads(done.stdout)["ids"]

    def logits(self, ids):
        with tempfile.NamedTemporaryFile() as file:
            self.run(ids, 1, file.name)
            return np.fromfile(file.name, np.float32).reshape(len(ids), -1)


def compare_answers(name, reference, mine, theirs, prompt):
    """Whether the answers agree, or the reference sides with ours where they part."""
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), None)
    if at is None:
        return True
    row = reference.logits([*prompt, *mine[:at]], 1)[0]
    ours = row[mine[at]] > row[theirs[at]]
    print(f"{name}: token {at + 1} differs, {mine[at]} and {theirs[at]}; the reference has {row[mine[at]]:.6f} and "
          f"{row[theirs[at]]:.6f}, {'as ours' if ours else 'NOT as ours'}")
    return bool(ours)


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("program")
    parse.add_argument("model")
    parse.add_argument("texts", type=pathlib.Path)
    parse.add_argument("--quick", action="store_true", help="three prompts of each kind, none long")
    f = parse.parse_args()
    reference, ours = Model(f.model), Ours(f.program, f.model)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        write_f32(f.model, f"{folder}/f32.gguf")
        peer = Peer(f"{folder}/f32.gguf", 2200)
        text = "".join(path.read_text(errors="replace") for path in sorted(f.texts.glob("*.txt")))
        dice = random.Random(1)

        def passage(tokens):
            at = dice.randrange(len(text) - 12 * tokens)
            return peer.tokenize(text[at:at + 12 * tokens], False)[:tokens]

        prompts = [passage(n) for n in ([30, 60, 90] if f.quick else range(20, 320, 15))]
        worst = 0.0
        for prompt in prompts:
            want, have = reference.logits(prompt), ours.logits(prompt)
            worst = max(worst, float((np.abs(have - want) / np.abs(want).max(-1, keepdims=True)).max()))
        good &= worst <= LIMIT
        print(f"logits of {sum(map(len, prompts))} positions of {len(prompts)} prompts: largest relative error {worst:.2e} "
              f"(limit {LIMIT:.0e})")

        chats = [peer.tokenize(f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{question}"
                               "<|im_end|>\n<|im_start|>assistant\n", True) for question in QUESTIONS[:3 if f.quick else 20]]
        longer = [] if f.quick else [passage(n) for n in (500, 1000, 1500, 2000)]
        agree = equal = 0
        for i, prompt in enumerate([*chats, *longer]):
            mine, theirs = ours.run(prompt, 64), peer.greedy(prompt, 64)
            equal += mine == theirs
            agree += compare_answers(f"prompt {i + 1} of {len(prompt)} tokens", reference, mine, theirs, prompt)
        count = len(chats) + len(longer)
        good &= agree == count
        print(f"64 greedy tokens after {count} prompts: {equal} equal llama.cpp's in F32, {agree} equal them or the reference sides "
              "with ours")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
