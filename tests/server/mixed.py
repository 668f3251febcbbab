#!/usr/bin/env python3
"""Exact and chunk requests at the same time for some minutes: no exact answer changes by a bit, and nobody's chunks serve another.

    mixed.py SERVER MODEL [SECONDS [KEYS]]

What a server without chunk mode answers, with log-probabilities, is asked first. Then clients ask for the same of a server
whose pages are few, while others warm documents, place them in any order with every strategy, and mark them in chats. With
KEYS each client is one of so many keys, with a salt or without one; each has documents of its own, and asks for those of the
others too. In the end nothing runs, no page is in use, and the process has not grown.
"""
import collections
import json
import random
import re
import sys
import threading
import time
from pathlib import Path

import running
from running import check

SERVER, MODEL = sys.argv[1:3]
SECONDS, KEYS = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((3, 600), (4, 0)))
WORDS = "Ella the kite library stands in a box of paper and Tom has two red boats on lake street where is".split()
STRATEGIES = [{"recompute": "none"}, {"recompute": "head", "rows": 4}, {"recompute": "boundary", "rows": 4},
              {"recompute": "blend", "percent": 20}, {"recompute": "gradual"}, {"recompute": "full"}]


class Tenant:
    """A key and a salt, the documents that it knows, and prompts whose exact answers are known."""

    def __init__(self, number, key, salt):
        dice = random.Random(f"tenant {number}")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.more = {"cache_salt": salt} if salt else {}
        self.documents = ["\n" + " ".join(dice.choices(WORDS, k=dice.randrange(24, 60))) + f" {number}.\n" for _ in range(8)]
        self.exact = []
        for i in range(24):
            texts = dice.sample(self.documents, dice.randrange(4)) + [" ".join(dice.choices(WORDS, k=dice.randrange(3, 20)))]
            limits = {"max_tokens": dice.randrange(2, 16), "ignore_eos": True, "temperature": 0 if i % 3 else 0.8, "seed": i}
            if i % 4:
                self.exact.append(("/v1/completions", {"prompt": "".join(texts), "logprobs": 2, **limits}))
            else:
                self.exact.append(("/v1/chat/completions", {"logprobs": True, "messages": [{"role": "user", "content": [
                    {"type": "text", "text": text} for text in texts]}], **limits}))

    def said(self, at, path, body):
        """What does not depend on the time of day, as text; and the usage."""
        status, reply, _ = at.ask("POST", path, {**body, **self.more}, self.headers)
        check(status == 200, f"{path} {body}: {status} {reply}")
        return json.dumps(reply["choices"], sort_keys=True), reply["usage"]


class Load:
    def __init__(self, at, tenants):
        self.at, self.tenants, self.over = at, tenants, time.monotonic() + SECONDS
        self.counts, self.lock = collections.Counter(), threading.Lock()

    def count(self, **words):
        with self.lock:
            self.counts.update(words)

    def exact(self, dice):
        tenant = dice.choice(self.tenants)
        n = dice.randrange(len(tenant.exact))
        path, body = tenant.exact[n]
        said, usage = tenant.said(self.at, path, body)
        check(said == tenant.known[n] and not usage["kvcache"]["approximate"], f"{body}: {said}, not {tenant.known[n]}; {usage}")
        self.count(exact=1, exact_hits=usage["prompt_tokens_details"]["cached_tokens"] > 0)

    def chunks(self, dice):
        tenant = dice.choice(self.tenants)
        cache = {"mode": "chunks", **dice.choice(STRATEGIES)}
        texts = dice.sample(tenant.documents, dice.randrange(1, 5))
        kind = dice.random()
        if kind < 0.2:
            status, reply, _ = self.at.ask("POST", "/v1/warm", {"text": texts[0], "cache": {"mode": "chunks"}, **tenant.more},
                                           tenant.headers)
            check(status == 200, f"warm: {status} {reply}")
            return self.count(warmed=1)
        if kind < 0.3 and len(self.tenants) > 1:  # documents of another, in a prompt that nobody had
            other = dice.choice([each for each in self.tenants if each is not tenant])
            _, usage = tenant.said(self.at, "/v1/completions", {
                "prompt": f"{dice.random()}" + "".join(other.documents[:4]), "max_tokens": 1, "cache": cache})
            used = usage["kvcache"]
            check(not used["approximate"] and used["approximate_tokens"] == 0 and used["exact_tokens"] < 32,
                  f"a chunk of another serves nobody: {usage}")
            return self.count(of_another=1)
        if kind < 0.45:  # one whose exact answer is known: all is computed again, so it is the same
            n = dice.randrange(len(tenant.exact))
            path, body = tenant.exact[n]
            said, usage = tenant.said(self.at, path, {**body, "cache": {"mode": "chunks", "recompute": "full"}})
            check(said == tenant.known[n] and not usage["kvcache"]["approximate"], f"full {body}: {said}; {usage}")
            return self.count(full=1)
        end = " ".join(dice.choices(WORDS, k=5))
        if kind < 0.75:
            body = {"prompt": "".join(texts) + end, "max_tokens": 4, "cache": cache, "ignore_eos": True}
            _, usage = tenant.said(self.at, "/v1/completions", body)
        else:
            parts = [{"type": "text", "text": text, "cache": "chunk"} for text in texts] + [{"type": "text", "text": end}]
            body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 4, "cache": cache}
            _, usage = tenant.said(self.at, "/v1/chat/completions", body)
        used = usage["kvcache"]
        check(used["mode"] == "chunks" and used["approximate"] == (used["approximate_tokens"] > 0), f"{body}: {usage}")
        self.count(chunks=1, approximate=used["approximate"])

    def work(self, what, seed):
        dice = random.Random(seed)
        while time.monotonic() < self.over:
            try:
                what(dice)
            except SystemExit as fault:
                with self.lock:
                    self.counts["FAILED"] += 1
                    if self.counts["FAILED"] < 10:
                        print(str(fault)[:2000], flush=True)


def resident(at):
    return int(re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{at.process.pid}/status").read_text())[1]) / 1024


def gauge(at, tenant, name):
    metrics = at.ask("GET", "/metrics", headers=tenant.headers)[1].decode()
    return float(re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", metrics, re.M)[1])


def main():
    keys = [f"key {i}" for i in range(KEYS)]
    tenants = [Tenant(2 * i + j, key, salt) for i, key in enumerate(keys or [None]) for j, salt in enumerate((None, "salt"))]
    if not KEYS:
        tenants = tenants[:1]
    flags = [word for key in keys for word in ("--api-key", key)]
    plain = running.Server(SERVER, MODEL, *flags)
    for tenant in tenants:
        tenant.known = [tenant.said(plain, *each)[0] for each in tenant.exact]
    plain.process.kill()
    at = running.Server(SERVER, MODEL, "--cache-mib", "4" if KEYS else "1", *flags)
    load = Load(at, tenants)
    threads = [threading.Thread(target=load.work, args=(what, f"{what.__name__} {i}"))
               for what in (load.exact, load.chunks) for i in range(6)]
    began, course, free = time.monotonic(), [], []
    for each in threads:
        each.start()
    for part in range(1, 11):
        time.sleep(max(0.0, began + SECONDS * part / 10 - time.monotonic()))
        course.append(round(resident(at), 1))
        free.append(gauge(at, tenants[0], "kvcache_pages_free"))
    for each in threads:
        each.join()
    print(json.dumps({"seconds": SECONDS, "tenants": len(tenants), "counts": load.counts, "resident_mib": course}))
    check(load.counts["FAILED"] == 0, load.counts)
    check(all(load.counts[kind] for kind in ("exact", "exact_hits", "full", "approximate", "warmed")), load.counts)
    check(not KEYS or load.counts["of_another"], load.counts)
    check(min(free) == 0, f"pages are few: {free}")
    check(course[-1] < course[4] + 8, f"no memory grows: {course}")
    for tenant in tenants:
        headers = {**tenant.headers, **({"x-cache-salt": tenant.more["cache_salt"]} if tenant.more else {})}
        for each in at.ask("GET", "/v1/sessions", headers=headers)[1]["data"]:
            at.ask("DELETE", "/v1/sessions/" + each["id"].replace(" ", "%20"), headers=headers)
    check(gauge(at, tenants[0], "vllm:num_requests_running") == 0 and gauge(at, tenants[0], "kvcache_pages_in_use") == 0,
          "nothing is held at rest")
    at.stop()
    asked = sum(load.counts[kind] for kind in ("exact", "chunks", "full", "warmed", "of_another"))
    print(f"mixed.py: {asked} requests, {running.checks} checks hold")


main()
