#!/usr/bin/env python3
"""Our server beside llama.cpp's: the same random weights, asked in turn over local HTTP, in one run.

    chat       ten turns of one user: milliseconds from the request sent to the first token read; then the sixth message
               is another one, without what followed, and with it
    two        two users who take turns, for five turns each
    sixteen    users with one system prompt of 1,500 tokens who come at the same time: how many tokens run
    sessions   users who talk at the same time, each behind its own past: tokens said a second, and the first token
    documents  eight of 512 tokens that were read before, in a new order: milliseconds to the first token; llama-server also
               with --cache-reuse 64, which moves what it finds in the same order

All are asked with token ids, and each user's past is what that server said. With --program (bench/model) the bound of
the chat takes its turn beside the servers: a prefill of the new tokens alone, in a process without a server. What a turn
costs without reuse is the same server asked for as many tokens that it never saw.
"""
import argparse
import http.client
import json
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from server import Ids, Server
from state import State
from tables import number, print_table, ratio

SYSTEM, ASKED, SAID, TURNS = 64, 16, 64, 10  # tokens, and the chat of bench/model


class Ours:
    """Our server, with the calls of server.Server."""

    def __init__(self, program: Path, model: Path, threads: int, *more):
        self.command = [str(word) for word in (program, "--model", model, "--port", 0, "--threads", threads, *more)]

    def __enter__(self) -> "Ours":
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        while line := self.process.stdout.readline():
            if found := re.match(r"listening on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return self
        raise RuntimeError("the server did not start")

    def __exit__(self, *_) -> None:
        self.process.terminate()
        self.process.communicate()

    def read(self, document: list[int]) -> None:
        """Keeps a document as a chunk."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        link.request("POST", "/v1/warm", json.dumps({"text": document, "cache": {"mode": "chunks"}}),
                     {"Content-Type": "application/json"})
        said = json.loads(link.getresponse().read())
        if said.get("chunk_tokens") != len(document):
            raise RuntimeError(str(said))

    def complete(self, prompt: list[int], count: int, cache: dict | None = None, **_) -> dict:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        link.connect()
        link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps({"prompt": prompt, "max_tokens": count, "stream": True, "temperature": 0, "ignore_eos": True,
                           "return_token_ids": True, "stream_options": {"include_usage": True},
                           **({"cache": cache} if cache else {})})
        began = time.perf_counter()
        link.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer, made = link.getresponse(), {"seconds": None, "tokens": []}
        if answer.status != 200:
            raise RuntimeError(answer.read().decode())
        while line := answer.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event["choices"]:
                if choice.get("token_ids") and made["seconds"] is None:
                    made["seconds"] = time.perf_counter() - began
                made["tokens"] += choice.get("token_ids", [])
            if event.get("usage"):
                made["ran"] = event["usage"]["prompt_tokens"] - event["usage"]["prompt_tokens_details"]["cached_tokens"]
        link.close()
        return made


class Theirs(Server):
    """llama-server with a slot a user."""

    def __init__(self, program: Path, model: Path, threads: int, users: int, context: int, *more):
        super().__init__(program, model, threads, context * users, "f16", ("-np", users, *more))

    def complete(self, prompt: list[int], count: int, cached: bool = True, **_) -> dict:
        made = super().complete(prompt, count, cached)
        made["ran"] = made["timings"]["prompt_n"]
        return made


class Bound:
    """A prefill of what is new, in a process without a server, with the calls of server.Server."""

    def __init__(self, program: Path, model: Path, threads: int):
        self.command = [str(word) for word in (program, "--model", model, "--threads", threads, "--paced")]

    def __enter__(self) -> "Bound":
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.held = 0
        return self

    def __exit__(self, *_) -> None:
        self.process.stdin.close()
        self.process.wait()

    def complete(self, prompt: list[int], count: int, **_) -> dict:
        if len(prompt) <= self.held:  # a new conversation
            self.process.stdin.write("0 0\n")
            self.held = 0
        new = len(prompt) - self.held
        self.process.stdin.write(f"{new} {max(count, 1) - 1}\n")
        self.process.stdin.flush()
        self.held = len(prompt) + max(count, 1) - 1  # the last token has not run
        return {"seconds": 1e-3 * float(self.process.stdout.readline()), "tokens": [3] * count, "ran": new}


def chat(servers: dict, ids: Ids, add, said: int) -> None:
    pasts, middles = dict.fromkeys(servers, ids(SYSTEM)), {}
    for turn in range(1, TURNS + 1):
        words, order = ids(ASKED), list(servers)
        for who in order[turn % len(order):] + order[:turn % len(order)]:
            prompt = pasts[who] + words
            heard = servers[who].complete(prompt, said)
            add(f"{who}/chat_turn_{turn:02}", 1e3 * heard["seconds"])
            add(f"{who}/chat_ran_turn_{turn:02}", heard["ran"])
            rest = ids(SAID - said)  # as if it had been said; the last token has not run
            if rest:
                servers[who].complete(prompt + heard["tokens"] + rest[:-1], 0)
            pasts[who] = prompt + heard["tokens"] + rest
            if turn == TURNS // 2:
                middles[who] = pasts[who]
        cold = servers["ours"].complete(ids(SYSTEM + turn * ASKED + (turn - 1) * SAID), 1)
        add(f"ours/chat_cold_turn_{turn:02}", 1e3 * cold["seconds"])
    words, tail = ids(ASKED), {who: pasts[who][len(middles[who]) + ASKED:] for who in servers}
    for who, server in servers.items():
        if who == "bound":
            continue
        for name, prompt in (("edit", middles[who] + words), ("edit_kept", middles[who] + words + tail[who] + ids(ASKED))):
            heard = server.complete(prompt, 1)
            add(f"{who}/chat_{name}", 1e3 * heard["seconds"])
            add(f"{who}/chat_{name}_ran", heard["ran"])


def two(server: Ours, ids: Ids, add, turns: int = 5) -> None:
    pasts = [ids(SYSTEM) for _ in range(2)]
    for turn in range(1, turns + 1):
        for user in range(2):
            prompt = pasts[user] + ids(ASKED)
            heard = server.complete(prompt, SAID)
            add(f"ours/two_turn_{turn:02}", 1e3 * heard["seconds"])
            add(f"ours/two_cold_turn_{turn:02}", 1e3 * server.complete(ids(len(prompt)), 1)["seconds"])
            pasts[user] = prompt + heard["tokens"]


def together(server, prompts: list[list[int]], count: int) -> tuple[list[dict], float]:
    """What is said to prompts that come at the same time, and the seconds until all is."""
    heard = [{}] * len(prompts)

    def talk(user: int) -> None:
        heard[user] = server.complete(prompts[user], count)

    crowd = [threading.Thread(target=talk, args=(user,)) for user in range(len(prompts))]
    began = time.perf_counter()
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    return heard, time.perf_counter() - began


def sixteen(server: Ours, ids: Ids, add, users: int = 16, system: int = 1500) -> None:
    common = ids(system)
    heard, took = together(server, [common + ids(ASKED) for _ in range(users)], 1)
    add("ours/sixteen_ran", sum(each["ran"] for each in heard))
    add("ours/sixteen_seconds", took)
    add("ours/sixteen_alone", server.complete(ids(system + ASKED), 1)["seconds"])


def sessions(servers: dict, ids: Ids, add, users: int, turns: int) -> None:
    pasts = {who: [ids(SYSTEM) for _ in range(users)] for who in servers}
    for turn in range(1, turns + 1):
        words = [ids(ASKED) for _ in range(users)]
        for who, server in servers.items():
            heard, took = together(server, [pasts[who][user] + words[user] for user in range(users)], SAID)
            add(f"{who}/sessions_rate_turn_{turn:02}", sum(len(h["tokens"]) for h in heard) / took)
            add(f"{who}/sessions_first_turn_{turn:02}", 1e3 * statistics.median(h["seconds"] for h in heard))
            add(f"{who}/sessions_ran_turn_{turn:02}", statistics.mean(h["ran"] for h in heard))
            for user in range(users):
                pasts[who][user] += words[user] + heard[user]["tokens"]


def documents(servers: dict, ids: Ids, add, count: int = 8, size: int = 512, orders: int = 4) -> None:
    begin, texts = ids(SYSTEM), [ids(size) for _ in range(count)]
    for text in texts:
        servers["ours"].read(text)
    for who, server in servers.items():
        if who != "ours":
            server.complete(begin + sum(texts, []) + ids(ASKED), 1)
    for _ in range(orders):
        prompt = begin + sum(ids.random.sample(texts, count), []) + ids(ASKED)
        for name, who, kind in (("head", "ours", {"mode": "chunks", "recompute": "head", "rows": 16}),
                                ("none", "ours", {"mode": "chunks", "recompute": "none"}),
                                ("cold", "ours", {"mode": "baseline"}), ("theirs", "theirs", None), ("moved", "moved", None)):
            if who in servers:
                add(f"documents/{name}", 1e3 * servers[who].complete(prompt, 1, cache=kind)["seconds"])


def report_documents(state: State, markdown: bool) -> None:
    rows = []
    for name, said in (("head", "ours, `head 16`"), ("none", "ours, `none`"), ("cold", "ours, cold"), ("theirs", "llama-server"),
                       ("moved", "llama-server --cache-reuse 64")):
        took = state.samples.get(f"documents/{name}", [])
        if took:
            pairs = sorted(other / mine for other, mine in zip(took, state.samples["documents/head"]))
            rows.append([said, number(statistics.median(took)), f"{statistics.median(pairs):.2f}",
                         f"{pairs[0]:.2f} to {pairs[-1]:.2f}", str(len(took))])
    print_table("Eight documents of 512 tokens in a new order, milliseconds to the first token",
                ["server", "first token", "over `head 16`", "range", "prompts"], rows, markdown)


def report(state: State, turns: int, markdown: bool, best: bool) -> None:
    if best:
        state.median = lambda name: (max if "rate" in name else min)(state.samples.get(name, [0])) or None
    rows, pairs = [], []
    for turn in range(1, TURNS + 1):
        at = lambda name: state.median(f"{name}_turn_{turn:02}")
        ours, bound, theirs = at("ours/chat"), at("bound/chat"), at("theirs/chat")
        beside = zip(*(state.samples.get(f"{who}/chat_turn_{turn:02}", []) for who in ("ours", "bound")))
        pairs.append([mine / least for mine, least in beside])
        if ours or theirs:
            rows.append([str(turn), number(at("ours/chat_ran"), 0), number(ours), number(bound), ratio(ours, bound),
                         number(statistics.median(pairs[-1]), 2) if pairs[-1] else "-", number(at("ours/chat_cold")),
                         ratio(at("ours/chat_cold"), ours), number(at("theirs/chat_ran"), 0), number(theirs),
                         ratio(theirs, ours)])
    print_table("Ten-turn chat through the server, milliseconds to the first token",
                ["turn", "tokens run", "ours", "bound", "ours / bound", "of a pair", "without reuse", "without / ours",
                 "theirs: tokens run", "llama-server", "theirs / ours"], rows, markdown)
    if flat := [each for turn in pairs for each in turn]:
        print(f"\nOurs / bound over all {len(flat)} pairs of turns: median {statistics.median(flat):.3f}")
    rows = []
    for name, words in (("edit", "the sixth message edited"), ("edit_kept", "the same, all that followed kept")):
        ours, theirs = (state.samples.get(f"{who}/chat_{name}", []) for who in ("ours", "theirs"))
        if ours:
            of_pairs = [b / a for a, b in zip(ours, theirs)]
            rows.append([words, number(state.median(f"ours/chat_{name}_ran"), 0), number(state.median(f"ours/chat_{name}")),
                         number(state.median(f"theirs/chat_{name}_ran"), 0), number(state.median(f"theirs/chat_{name}")),
                         number(statistics.median(of_pairs), 2) if of_pairs else "-"])
    print_table("An edit in the middle of the chat, milliseconds to the first token",
                ["", "tokens run", "ours", "theirs: tokens run", "llama-server", "theirs / ours, of a pair"], rows, markdown)
    rows = []
    for turn in range(1, TURNS + 1):
        at = lambda name: state.median(f"{name}_turn_{turn:02}")
        if ours := at("ours/two"):
            rows.append([str(turn), number(ours), number(at("ours/two_cold")), ratio(at("ours/two_cold"), ours)])
    print_table("Two users who take turns, milliseconds to the first token",
                ["turn", "ours", "without reuse", "without / ours"], rows, markdown)
    if state.samples.get("ours/sixteen_ran"):
        print_table("Sixteen users at the same time, one system prompt of 1,500 tokens and 16 of their own each",
                    ["tokens run", "of", "seconds", "one prompt alone"],
                    [[number(state.median("ours/sixteen_ran"), 0), str(16 * (1500 + ASKED)),
                      *(number(state.median(f"ours/sixteen_{what}"), 2) for what in ("seconds", "alone"))]], markdown)
    rows = []
    for turn in range(1, turns + 1):
        at = lambda name: state.median(f"{name}_turn_{turn:02}")
        ours, theirs = at("ours/sessions_rate"), at("theirs/sessions_rate")
        if ours or theirs:
            rows.append([str(turn), number(ours), number(theirs), ratio(ours, theirs), number(at("ours/sessions_first")),
                         number(at("theirs/sessions_first")), ratio(at("theirs/sessions_first"), at("ours/sessions_first"))])
    print_table("Users at the same time, tokens said a second and milliseconds to the first token",
                ["turn", "ours, a second", "llama-server", "ours / theirs", "ours, first", "llama-server", "theirs / ours"],
                rows, markdown)
    report_documents(state, markdown)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("parts", nargs="*", choices=["chat", "two", "sixteen", "sessions", "documents", []], help="all but documents, if none is named")
    parse.add_argument("--server", type=Path, help="our server")
    parse.add_argument("--model", type=Path, help="the weights, with a tokenizer beside them")
    parse.add_argument("--program", type=Path, help="our bench program `model`, for the bound")
    parse.add_argument("--llama-server", type=Path)
    parse.add_argument("--gguf", type=Path, help="the same weights")
    parse.add_argument("--int8", action="store_true", help="our server with int8 activations, which llama.cpp has for quantised weights")
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--users", type=int, default=8)
    parse.add_argument("--turns", type=int, default=4, help="of the users who talk at the same time")
    parse.add_argument("--said", type=int, default=SAID, help="tokens of a reply that are said; the rest are handed over")
    parse.add_argument("--best", action="store_true", help="reports the best samples, not the medians")
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--state", type=Path, default=Path("build/compare/serving.json"), help="keeps the samples")
    parse.add_argument("--report", action="store_true", help="only prints what the state holds")
    parse.add_argument("--markdown", action="store_true")
    f = parse.parse_args()
    state = State(f.state)
    if not f.report:
        if not f.server or not f.model:
            sys.exit("serving.py: --server and --model are needed")
        ids = Ids(49152, len(json.dumps(state.samples)))
        parts = f.parts or ["chat", "two", "sixteen", "sessions"]
        servers = {"ours": Ours(f.server, f.model, f.threads, *(("--cache-mib", 2048) if "documents" in parts else ()),
                                *(("--int8",) if f.int8 else ()))}
        if "documents" in parts and parts != ["documents"]:
            sys.exit("serving.py: documents need a llama-server of one slot; please ask for them alone")
        if f.program:
            servers["bound"] = Bound(f.program, f.model, f.threads)
        if f.llama_server and parts == ["documents"]:
            servers["theirs"] = Theirs(f.llama_server, f.gguf, f.threads, 1, 8192)
            servers["moved"] = Theirs(f.llama_server, f.gguf, f.threads, 1, 8192, "--cache-reuse", 64)
        elif f.llama_server:
            servers["theirs"] = Theirs(f.llama_server, f.gguf, f.threads, f.users, 2048)
        entered = {}
        try:
            for who, server in servers.items():
                entered[who] = server.__enter__()
                entered[who].complete(ids(8), 2)  # what is made at the first request is there
            for _ in range(f.rounds):
                if "chat" in parts:
                    chat(entered, ids, state.add, f.said)
                if "two" in parts:
                    two(entered["ours"], ids, state.add)
                if "sixteen" in parts:
                    sixteen(entered["ours"], ids, state.add)
                if "sessions" in parts:
                    answering = {who: each for who, each in entered.items() if who != "bound"}
                    sessions(answering, ids, state.add, f.users, f.turns)
                if "documents" in parts:
                    documents(entered, ids, state.add)
                state.save()
        finally:
            for server in entered.values():
                server.__exit__()
    report(state, f.turns, f.markdown, f.best)


if __name__ == "__main__":
    main()
