#!/usr/bin/env python3
"""lm-evaluation-harness over the server: a multiple-choice task, scored by echo and logprobs, and by generate --logits.

    harness.py SERVER GENERATE MODEL [COUNT]

Needs tests/server/harness_requirements.txt; COUNT questions are asked (40). MODEL is the model of this repository, whose questions.jsonl the task is made of. The score of
the harness, and the log-likelihood of each choice, have to be those of the logits that `generate` writes for the same tokens.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import running
from running import check

SERVER, GENERATE, MODEL = sys.argv[1:4]
COUNT = int(sys.argv[4]) if len(sys.argv) > 4 else 40
CHOICES = 4
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OPENAI_API_KEY="none")

try:
    import numpy as np
    import lm_eval
    from lm_eval.tasks import TaskManager
    from transformers import AutoTokenizer
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit()


def questions():
    """Contexts in the model's chat format, each with its answer, and with others that end in another word."""
    draw = random.Random(1)
    every = [json.loads(line) for line in (Path(MODEL) / "questions.jsonl").read_text().splitlines()]
    for one in draw.sample(every, COUNT):
        kept = [text for text in one["documents"] if draw.random() < 0.5]  # without all notes it has to guess
        notes = "\n".join(kept)
        turns = [("system", notes)] + [(("user", "assistant")[i % 2], text) for i, text in enumerate(one["history"])]
        text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in [*turns, ("user", one["question"])])
        start, last = one["answer"].rsplit(" ", 1)
        alike = {o["answer"].rsplit(" ", 1)[1] for o in every if o["answer"].split()[-2:-1] == start.split()[-1:]} - {last}
        if len(alike) < CHOICES - 1:
            continue
        choices = [one["answer"], *(f"{start} {word}" for word in draw.sample(sorted(alike), CHOICES - 1))]
        draw.shuffle(choices)
        yield {"context": text + "<|im_start|>assistant\n", "choices": choices, "right": choices.index(one["answer"])}


def by_harness(folder, asked, at):
    (folder / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    (folder / "worlds.yaml").write_text(json.dumps({
        "task": "worlds", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "data.jsonl")}},
        "output_type": "multiple_choice", "test_split": "test", "doc_to_text": "{{context}}", "doc_to_choice": "{{choices}}",
        "doc_to_target": "right", "target_delimiter": "", "metric_list": [{"metric": "acc"}]}))
    url = f"http://127.0.0.1:{at.port}/v1/completions"
    got = lm_eval.simple_evaluate(
        model="local-completions", batch_size=8, tasks=["worlds"], task_manager=TaskManager(include_path=str(folder)), log_samples=True,
        model_args={"model": Path(MODEL).name, "base_url": url, "tokenizer": MODEL, "num_concurrent": 4, "max_retries": 1})
    samples = sorted(got["samples"]["worlds"], key=lambda s: s["doc_id"])
    likely = [[float(r[0][0] if isinstance(r[0], (list, tuple)) else r[0]) for r in s["resps"]] for s in samples]
    return got["results"]["worlds"]["acc,none"], likely


def by_logits(folder, asked):
    words = AutoTokenizer.from_pretrained(MODEL)
    likely = []
    for one in asked:
        likely.append([])
        start = words.encode(one["context"])
        for choice in one["choices"]:
            ids = words.encode(one["context"] + choice)
            check(ids[:len(start)] == start, "the context is a prefix of the whole")
            subprocess.run([GENERATE, "--model", MODEL, "--ids", ",".join(map(str, ids)), "--max-tokens", "1", "--logits", folder / "rows"],
                           check=True, stdout=subprocess.DEVNULL)
            rows = np.fromfile(folder / "rows", dtype=np.float32).reshape(len(ids), -1).astype(np.float64)
            highest = rows.max(axis=1, keepdims=True)
            rows -= highest + np.log(np.exp(rows - highest).sum(axis=1, keepdims=True))
            likely[-1].append(sum(rows[i - 1, ids[i]] for i in range(len(start), len(ids))))
    right = [int(np.argmax(scores)) == one["right"] for scores, one in zip(likely, asked)]
    return sum(right) / len(right), likely


def main():
    asked = list(questions())
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        at = running.Server(SERVER, MODEL, "--queue", "1024")
        score, likely = by_harness(folder, asked, at)
        at.stop()
        wanted, exact = by_logits(folder, asked)
    apart = max(abs(a - b) for of, should in zip(likely, exact) for a, b in zip(of, should))
    print(f"{len(asked)} questions of {CHOICES} choices: accuracy {score:.4f} by lm-eval {lm_eval.__version__}, {wanted:.4f} by the logits; "
          f"log-likelihoods at most {apart:.1e} apart")
    check(abs(score - wanted) < 1e-9, "the scores are the same")
    check([len(of) for of in likely] == [CHOICES] * len(asked) and apart < 1e-3, "and so is each log-likelihood")
    check(len({round(v, 3) for of in likely for v in of}) > len(asked), "which differ")
    print(f"harness.py: {running.checks} checks hold")


main()
