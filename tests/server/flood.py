#!/usr/bin/env python3
"""What one key's flood does to ten users of other keys: their times to the first token and their cached tokens, with it
and without it, and what the flood has left of the server.

    flood.py SERVER MODEL [--burst 100 | --rate 200] [--seconds 30] [-- FLAGS OF THE SERVER]

The flood is a burst of requests at once, again when all are answered, or so many requests a second, answered or not; each
has 300 words of its own and asks for 64 tokens. A user asks once a second for 4 tokens; the first 450 tokens of the prompt
are cached. Prints a table; asserts nothing but that the users are answered.
"""
import argparse
import http.client
import json
import random
import re
import statistics
import sys
import threading
import time

import running


class Asker:
    """A key's connection for one request, streamed."""

    def __init__(self, port, key):
        self.port, self.key = port, key

    def ask(self, prompt, tokens):
        """Status, seconds to the first event, and usage."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        began = time.monotonic()
        link.request("POST", "/v1/completions",
                     json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                                 "stream_options": {"include_usage": True}}),
                     {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
        got = link.getresponse()
        if got.status != 200:
            got.read()
            return got.status, None, None
        got.readline()
        took = time.monotonic() - began
        events = got.read().decode().split("\n\n")
        link.close()
        usage = [json.loads(event[6:])["usage"] for event in events if '"usage"' in event and '"usage":null' not in event.replace(" ", "")]
        return 200, took, usage[-1]


class Users:
    """Ten users, each with a key and a cached prompt."""

    def __init__(self, port, count):
        self.asker = [Asker(port, f"user {i}") for i in range(count)]
        self.known = [" ".join(f"word{i}x{j}" for j in range(90)) for i in range(count)]
        for asker, known in zip(self.asker, self.known):
            running.check(asker.ask(known, 4)[0] == 200, "a user is answered")

    def during(self, seconds, name):
        took, cached, prompt, generated, lock = [], 0, 0, 0, threading.Lock()
        end = time.monotonic() + seconds

        def work(i):
            nonlocal cached, prompt, generated
            dice = random.Random(f"{name} {i}")
            time.sleep(dice.random())
            while time.monotonic() < end:
                began = time.monotonic()
                status, first, usage = self.asker[i].ask(f"{self.known[i]} {name} {dice.random()}", 4)
                running.check(status == 200, f"user {i}: {status}")
                with lock:
                    took.append(first)
                    cached += usage["prompt_tokens_details"]["cached_tokens"]
                    prompt += usage["prompt_tokens"]
                    generated += usage["completion_tokens"]
                time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(self.asker))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return sorted(took), cached / prompt, prompt - cached + generated


class Flood:
    def __init__(self, port, burst, rate):
        self.port, self.over, self.count, self.refused = port, False, 0, 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.paced, args=(rate,), daemon=True)] if rate else [
            threading.Thread(target=self.again, daemon=True) for _ in range(burst)]
        for each in self.threads:
            each.start()

    def one(self):
        with self.lock:
            self.count += 1
            mine = self.count
        try:
            if Asker(self.port, "flood").ask(" ".join(f"f{mine}x{j}" for j in range(300)), 64)[0] == 429:
                self.refused += 1
        except (OSError, ValueError, http.client.HTTPException):
            pass  # the server ends

    def again(self):
        while not self.over:
            self.one()

    def paced(self, rate):
        began = time.monotonic()
        for i in range(10 ** 9):
            if self.over:
                return
            time.sleep(max(0.0, began + i / rate - time.monotonic()))
            threading.Thread(target=self.one, daemon=True).start()


def computed(at):
    """Tokens that were computed, by the server's counters."""
    _, raw, _ = at.ask("GET", "/metrics", headers={"Authorization": "Bearer flood"})
    value = lambda name: float(re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", raw.decode(), re.M)[1])
    return value("kvcache_rows"), value("kvcache_steps")


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("server")
    flags.add_argument("model")
    flags.add_argument("--burst", type=int, default=100)
    flags.add_argument("--rate", type=int, default=0)
    flags.add_argument("--seconds", type=float, default=30)
    flags.add_argument("--users", type=int, default=10)
    own = sys.argv[1:]
    rest = own[own.index("--") + 1:] if "--" in own else []
    f = flags.parse_args(own[:own.index("--")] if "--" in own else own)
    keys = [word for i in range(f.users) for word in ("--api-key", f"user {i}")]
    at = running.Server(f.server, f.model, "--cache-mib", "512", "--page", "64", "--threads", "2", "--api-key", "flood", *keys, *rest)
    users = Users(at.port, f.users)
    alone, hits, _ = users.during(f.seconds, "alone")
    flood = Flood(at.port, f.burst, f.rate)
    time.sleep(3)
    (before, steps), began = computed(at), time.monotonic()
    time.sleep(f.seconds)
    after, more = computed(at)
    free = (after - before) / (time.monotonic() - began)
    step = (time.monotonic() - began) / max(1.0, more - steps)
    before, began = computed(at)[0], time.monotonic()
    loud, loud_hits, theirs = users.during(f.seconds, "loud")
    seconds = time.monotonic() - began
    left = free - theirs / seconds
    got = (computed(at)[0] - before - theirs) / seconds
    flood.over = True
    p99 = lambda took: took[min(len(took) - 1, int(len(took) * 0.99))]
    print(f"one forward pass with the flood: {step:.3f} s; requests of the flood: {flood.count}, refused {flood.refused}")
    for name, took, share in (("users alone", alone, hits), ("with the flood", loud, loud_hits)):
        print(f"{name}: {len(took)} requests, first token median {statistics.median(took):.3f} s, p99 {p99(took):.3f} s, "
              f"cached {share:.3f} of their tokens")
    print(f"median {statistics.median(loud) / statistics.median(alone):.2f} times, less one pass "
          f"{(statistics.median(loud) - step) / statistics.median(alone):.2f} times; p99 {p99(loud) / p99(alone):.2f} times; "
          f"hits {loud_hits / hits:.3f} times")
    print(f"the flood: {free:.0f} tokens a second without the users, {got:.0f} with them: {got / left:.2f} of the {left:.0f} that are left")
    at.process.kill()


main()
