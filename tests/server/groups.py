#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The server with models whose layers keep different things. Conversations, edits, several answers and clients at the same
time get the words that a computation of everything says, and what they share is reused.

    groups.py SERVER MODEL
"""
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
from running import Server, check
from worded_checkpoint import with_words

program, model = sys.argv[1:3]
CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"
SYSTEM = {"role": "system", "content": "Ella has a kite, and the kite is red, and it flies over the harbour all day long. " * 4}


def asked(server, messages, **more):
    status, reply = server.post("/v1/chat/completions", messages=messages, temperature=0, max_tokens=12, ignore_eos=True,
                                return_token_ids=True, **more)
    check(status == 200, f"a chat is answered: {reply}")
    return reply


def ids(reply):
    return [choice["token_ids"] for choice in reply["choices"]]


def same(server, messages, **more):
    """The answer from the cache, which everything computed anew gives too."""
    reply = asked(server, messages, **more)
    check(ids(reply) == ids(asked(server, messages, cache={"mode": "baseline"}, **more)), f"{messages[-1]} has one answer")
    return reply


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def talk(server, subject, turns):
    messages = [SYSTEM]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{subject}, and what came after, the {turn}. time?"})
        reply = same(server, messages)
        check(turn == 0 or cached(reply) >= 64, f"turn {turn} reuses its past: {reply['usage']}")
        messages.append(reply["choices"][0]["message"] | {"role": "assistant"})
    return messages


with tempfile.TemporaryDirectory() as name:
    for one, flags in (("qwen35", []), ("lfm2", ["--codec", "int8"]), ("gemma3", []), ("gpt-oss", ["--draft", "4"])):
        path = Path(name) / f"{one}-{len(flags)}"
        with_words(CHECKPOINTS / one, Path(model), path)
        server = Server(program, str(path), "--cache-mib", "16", *flags)
        messages = talk(server, "Where is the kite", 4)
        edited = messages[:3] + [{"role": "user", "content": "And the boat?"}]
        check(cached(same(server, edited)) >= 64, "an edited conversation reuses what stays")
        check(len(same(server, messages[:-1], n=3)["choices"]) == 3, "three answers")

        failures = []

        def client(number):
            try:
                talk(server, f"Tom {number} has two red boats", 3)
            except SystemExit as fault:
                failures.append(fault)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        check(not failures, f"six conversations at the same time: {failures[:1]}")

        status, reply = server.post("/v1/completions", prompt="Here.", max_tokens=4, cache={"mode": "chunks"})
        check(status == 400 and "by group" in reply["error"]["message"], f"chunks are refused: {reply}")
        server.stop()
print("the server serves models of layer groups")
