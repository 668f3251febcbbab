# SPDX-License-Identifier: MIT
"""Prints the held-out accuracies of a model directory, read by transformers and run in float32, greedily.

A reply is right when it is the answer, to the letter, bridge and all. Beside it stands what a guess would get that
knows the kind of value and takes the commonest such value of the notes.
"""

import argparse
import collections
import json
import os
import pathlib
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import transformers

import generate

SYSTEM = generate.SYSTEMS[0]


def messages_of(item):
    messages = [{"role": "system", "content": SYSTEM + "\n" + "\n".join(item["documents"])}]
    for i, text in enumerate(item["history"]):
        messages.append({"role": ("user", "assistant")[i % 2], "content": text})
    return messages + [{"role": "user", "content": item["question"]}]


class Reader:
    def __init__(self, folder):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.stop = self.tokenizer.convert_tokens_to_ids("<|im_end|>")

    def prompt(self, messages):
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def reply(self, messages, documents=(), limit=64):
        """The greedy reply. `documents`: read each of these without sight of the others, at its own positions."""
        text = self.prompt(messages)
        ids, mask = self.ids(text), None
        if documents:
            mask = self.isolated(text, documents, len(ids))
        past, out, feed = None, [], torch.tensor([ids])
        while len(out) < limit:
            step = self.model(input_ids=feed, past_key_values=past, attention_mask=mask, use_cache=True,
                              logits_to_keep=1)
            past, mask = step.past_key_values, None
            token = int(step.logits[0, -1].argmax())
            if token == self.stop:
                break
            out.append(token)
            feed = torch.tensor([[token]])
        return self.tokenizer.decode(out)

    def isolated(self, text, documents, count):
        owner = torch.zeros(count, dtype=torch.long)
        for index, document in enumerate(documents):
            begin = text.index(document)
            first = len(self.ids(text[:begin]))
            owner[first:first + len(self.ids(document + "\n"))] = index + 1
        see = torch.tril(torch.ones(count, count, dtype=torch.bool))
        both = (owner[:, None] > 0) & (owner[None, :] > 0)
        see &= ~(both & (owner[:, None] != owner[None, :]))
        mask = torch.zeros(count, count).masked_fill(~see, torch.finfo(torch.float32).min)
        return mask[None, None]


def table(title, results, guesses=None):
    print(title)
    for kind, right in results.items():
        line = f"  {kind:10s} {sum(right):5d} of {len(right):5d}  {100 * sum(right) / len(right):5.1f} %"
        if guesses:
            line += f"   guess {100 * sum(guesses[kind]) / len(guesses[kind]):5.1f} %"
        print(line, flush=True)


def chats(reader, seed, count, turns):
    """Whole chats over one world, right by turn and by kind. A wrong reply is put right before the next turn."""
    rng = random.Random(seed)
    results, longest = collections.defaultdict(list), 0
    for _ in range(count):
        world = generate.World(rng, generate.Level((12, 14)))
        messages = [{"role": "system", "content": SYSTEM + "\n" + "\n".join(world.notes)}]
        asked, last, turn = set(), None, 0
        while turn < turns:
            question = world.ask(rng.choices(("one", "two", "refer", "follow", "tell"), (2, 2, 1, 4, 1))[0], last)
            if question is None or question.fact in asked:
                if rng.random() < 0.02:
                    last = None
                continue
            asked.add(question.fact)
            messages.append({"role": "user", "content": question.text})
            reply = reader.reply(messages)
            right = reply == question.answer
            messages.append({"role": "assistant", "content": question.answer})
            results[question.kind].append(right)
            results["turns 1-5" if turn < 5 else f"turns 6-{turns}"].append(right)
            last, turn = question, turn + 1
        longest = max(longest, len(reader.ids(reader.prompt(messages))))
    table(f"chats of {turns} turns, {count} worlds of 12 to 14 notes, up to {longest} tokens", dict(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--fresh", type=int, default=100, help="held-out questions of each kind, beside the file's")
    parser.add_argument("--chats", type=int, default=12)
    parser.add_argument("--seed", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--talk", action="store_true", help="replay conversation.json and print it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    reader = Reader(args.folder)
    folder = pathlib.Path(args.folder)

    if args.talk:
        script = json.loads((folder / "conversation.json").read_text())
        messages = [{"role": "system", "content": script["system"]}]
        for turn in script["turns"]:
            messages.append({"role": "user", "content": turn})
            messages.append({"role": "assistant", "content": reader.reply(messages)})
        print(reader.prompt(messages[:-1]) + messages[-1]["content"])
        print(len(reader.ids(reader.prompt(messages))), "tokens")
        return

    questions = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    fresh = list(generate.items(args.seed, args.fresh, generate.Level(), generate.KINDS[:5]))
    for title, items in (("questions.jsonl", questions), (f"fresh questions, seed {args.seed}", fresh)):
        if not items:
            continue
        together, apart, guesses = (collections.defaultdict(list) for _ in range(3))
        for item in items:
            messages = messages_of(item)
            together[item["kind"]].append(reader.reply(messages) == item["answer"])
            apart[item["kind"]].append(reader.reply(messages, item["documents"]) == item["answer"])
            guesses[item["kind"]].append(item["guess"])
        table(title, together, guesses)
        table(title + ", each note read without the others", apart)
    if args.chats:
        chats(reader, args.seed + 1, args.chats, 10)


if __name__ == "__main__":
    main()
