"""Recorded workloads as requests of tokens: (prompt, answer), two lists each."""
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

VOCABULARY = 128_000
SEED = 1


def expand(space: int, block: int, tokens: int) -> np.ndarray:
    """The tokens that a block's name stands for: the same name gives the same tokens, another one others (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.arange(tokens, dtype=np.uint64) + np.uint64((space << 48 | block << 20) + 1) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) % np.uint64(VOCABULARY)).astype(np.uint32)


def prompt_of(blocks: list[int], block_tokens: int, length: int, space: int = 0) -> list[int]:
    if not blocks:
        return []
    return np.concatenate([expand(space, block, block_tokens) for block in blocks])[:length].tolist()


def conversations(data: Path) -> Iterator[tuple[list[int], list[int]]]:
    """Mooncake's conversations: names of blocks of 512 tokens. The answers' tokens are not recorded: each is its own."""
    with gzip.open(data / "traces/conversation_trace.jsonl.gz") as lines:
        for number, line in enumerate(lines):
            one = json.loads(line)
            yield prompt_of(one["hash_ids"], 512, one["input_length"]), expand(1, number, one["output_length"]).tolist()


def sessions(data: Path) -> Iterator[tuple[list[int], list[int]]]:
    """Coding agents: names of blocks of 64 tokens, one space of names a session. Requests of sub-agents where they began."""
    def flat(requests: list[dict]) -> Iterator[dict]:
        for one in requests:
            if one["type"] == "subagent":
                yield from flat(one["requests"])
            else:
                yield one
    number = 0
    for space, file in enumerate(sorted((data / "traces/agentic").glob("*.json")), 2):
        session = json.loads(file.read_text())
        for one in flat(session["requests"]):
            number += 1
            answer = expand(1, (1 << 24) + number, one["out"]).tolist()
            yield prompt_of(one["hash_ids"], session["block_size"], one["in"], space), answer


def dialogues(data: Path) -> Iterator[tuple[list[int], list[int]]]:
    """Task dialogues, eight at a time in turn: each user turn asks with all that was said, and the answer is the next turn. A
    token is a byte."""
    with gzip.open(data / "chats/sgd/dev_dialogues_007.json.gz") as file:
        waiting = [[turn["utterance"] for turn in one["turns"]] for one in json.load(file)]
    begin = "system: You help a user with restaurants, events, music, homes and travel. Ask for what is missing.\n"
    running = [(begin, waiting.pop(0)) for _ in range(8)]
    while running:
        said, turns = running.pop(0)
        prompt, answer = f"{said}user: {turns[0]}\nassistant: ", f"{turns[1]}\n" if len(turns) > 1 else ""
        yield list(prompt.encode()), list(answer.encode())
        if len(turns) > 2:
            running.append((prompt + answer, turns[2:]))
        elif waiting:
            running.append((begin, waiting.pop(0)))


def prefixes(vocabulary: int, length) -> Iterator[tuple[list[int], list[int]]]:
    """Prefixes of twelve random prompts of 160 tokens, of the length that length(n) makes of a random n from 1 to 160."""
    draw = random.Random(SEED)
    prompts = [[draw.randrange(vocabulary) for _ in range(160)] for _ in range(12)]
    for _ in range(2000):
        yield draw.choice(prompts)[:length(draw.randint(1, 160))], []


TRACES = {
    "conversations": conversations, "sessions": sessions, "dialogues": dialogues,
    "prefixes": lambda data: prefixes(VOCABULARY, lambda n: n if n % 16 else n - 1),  # no length is a multiple of a block
    "whole prefixes": lambda data: prefixes(VOCABULARY, lambda n: -(-n // 16) * 16),  # every length is
    "prefixes of three tokens": lambda data: prefixes(3, lambda n: n if n % 16 else n - 1),
}
