#!/usr/bin/env python3
"""A crowd for some minutes: it is answered rightly, and leaves nothing behind.

    endurance.py SERVER MODEL [SECONDS [CONNECTIONS [IDLE [DATA]]]]

Every connection asks on end: streams and whole answers, whose text must be the one that was said before the crowd came;
some hang up in the middle, send half a request, or a body that is none (DATA/protocol). Idle connections stay open beside.
In the end nothing runs, no page is held but by conversations, and when those are forgotten none at all.
"""
import collections
import http.client
import json
import random
import re
import resource
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import running
from running import check

SERVER, MODEL = sys.argv[1:3]
SECONDS, CONNECTIONS, IDLE = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((3, 600), (4, 200), (5, 1000)))
DATA = Path(sys.argv[6]) if len(sys.argv) > 6 else None
WORDS = "Ella the kite library stands in a box of paper and Tom has two red boats on lake street where is".split()


class Crowd:
    def __init__(self, at):
        self.at, self.lock, self.over = at, threading.Lock(), time.monotonic() + SECONDS
        self.counts, self.took, self.waited = collections.Counter(), [], []
        self.answered = collections.Counter()  # by connection
        dice = random.Random(1)
        prompts = [" ".join(dice.choices(WORDS, k=dice.randrange(4, 40))) for _ in range(40)]
        self.known = [(p, at.post("/v1/completions", **self.body(p))[1]["choices"][0]["text"]) for p in prompts]
        self.chats = [(p, at.chat(p, user=f"first {i}", **self.limits(p))[1]["choices"][0]["message"]["content"])
                      for i, p in enumerate(prompts[:10])]
        self.broken = [b"", b"{", b"[1", b'{"prompt": "\\ud800"}', b'{"prompt": 1e999}', b"\xff\xfe", b'{"prompt": "x", "n": -1}']
        if DATA:
            self.broken += [f.read_bytes() for f in sorted((DATA / "protocol" / "JSONTestSuite" / "test_parsing").glob("n_*.json"))]

    def limits(self, prompt):
        return {"max_tokens": 8 + len(prompt) % 24, "temperature": 0, "ignore_eos": True}

    def body(self, prompt):
        return {"prompt": prompt, **self.limits(prompt)}

    def note(self, what, took=None):
        with self.lock:
            self.counts[what] += 1
            if took is not None:
                self.took.append(took)
                self.answered[threading.current_thread().name] += 1

    def ask(self, link, path, body):
        """The status, what was said, and the seconds to the first of it and to the last."""
        began = time.monotonic()
        link.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), {"Content-Type": "application/json"})
        got = link.getresponse()
        said = got.readline()
        first = time.monotonic() - began
        return got.status, said + got.read(), first, time.monotonic() - began

    def one(self, link, dice):
        """A request; whether the connection goes on."""
        kind, n = dice.random(), dice.randrange(len(self.known))
        prompt, wanted = self.known[n]
        if kind < 0.35:
            status, raw, _, took = self.ask(link, "/v1/completions", self.body(prompt))
            if status == 200:
                check(json.loads(raw)["choices"][0]["text"] == wanted, f"{prompt}: {raw}")
                self.note("whole", took)
        elif kind < 0.6:
            status, raw, first, took = self.ask(link, "/v1/completions", {**self.body(prompt), "stream": True})
            if status == 200:
                events = [json.loads(e[6:]) for e in raw.decode().split("\n\n")[:-2]]
                check("".join(e["choices"][0]["text"] for e in events) == wanted, f"{prompt}: {raw}")
                self.note("streamed", took)
                with self.lock:
                    self.waited.append(first)
        elif kind < 0.8:
            prompt, wanted = self.chats[n % len(self.chats)]
            messages = [{"role": "user", "content": prompt}]
            status, raw, _, took = self.ask(link, "/v1/chat/completions", {
                "messages": messages, "user": f"user {dice.randrange(300)}", **self.limits(prompt)})
            if status == 200:
                check(json.loads(raw)["choices"][0]["message"]["content"] == wanted, f"{prompt}: {raw}")
                self.note("chats", took)
        elif kind < 0.9:
            body = dice.choice(self.broken)
            status, raw, _, _ = self.ask(link, "/v1/completions", body)
            check(status == 400 and b'"error"' in raw, f"{body}: {status} {raw}")
            self.note("malformed")
        elif kind < 0.96:
            body = json.dumps({**self.body(prompt), "max_tokens": 900, "stream": dice.random() < 0.5})
            link.request("POST", "/v1/completions", body)
            time.sleep(dice.random() * 0.3)
            self.note("hung up")
            return False
        else:
            text = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{{".encode()
            link.connect() if link.sock is None else None
            link.sock.sendall(text[:dice.randrange(1, len(text))])
            time.sleep(dice.random() * 2)
            self.note("half a request")
            return False
        if status in (429, 503):
            self.note(f"HTTP {status}")
            time.sleep(0.2)
        return True

    def work(self, seed):
        dice, link = random.Random(seed), None
        while time.monotonic() < self.over:
            link = link or http.client.HTTPConnection("127.0.0.1", self.at.port, timeout=120)
            try:
                if self.one(link, dice):
                    continue
            except (http.client.HTTPException, OSError) as fault:
                self.note(type(fault).__name__)
            except SystemExit as fault:
                with self.lock:
                    self.counts[str(fault)[:300]] += 1
                    self.counts["FAILED"] += 1
            link.close()
            link = None

    def idle(self):
        """Connections that say nothing; the server may close them, and then others come."""
        open_ = []
        while time.monotonic() < self.over:
            while len(open_) < IDLE:
                open_.append(socket.create_connection(("127.0.0.1", self.at.port)))
            for link in open_[:]:
                link.setblocking(False)
                try:
                    if link.recv(1) == b"":
                        open_.remove(link)
                        link.close()
                except BlockingIOError:
                    pass
                except OSError:
                    open_.remove(link)
                    link.close()
            time.sleep(0.5)
        for link in open_:
            link.close()


def memory(at, began):
    """What the process has, and what of it the cache and the threads explain."""
    status = Path(f"/proc/{at.process.pid}/status").read_text()
    number = lambda name, of=status: int(re.search(rf"{name}:\s*(\d+)", of)[1])
    maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{at.process.pid}/smaps").read_text(), flags=re.M)[1:]
    huge = sum(number("Rss", each) for each in maps if re.search(r"^VmFlags:.* hg\b", each, re.M))
    return {"seconds": round(time.monotonic() - began), "resident_mib": number("VmRSS") // 1024,
            "of_pages_and_weights_mib": huge // 1024, "threads": number("Threads"),
            "pages_in_use": int(at.gauge("kvcache_pages") - at.gauge("kvcache_pages_free")),
            "sessions": int(at.gauge("kvcache_sessions"))}


def main():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    at = running.Server(SERVER, MODEL, "--connections", str(CONNECTIONS + IDLE + 100), "--queue", "1024", "--sessions", "128")
    crowd = Crowd(at)
    threads = [threading.Thread(target=crowd.work, args=(seed,)) for seed in range(CONNECTIONS)]
    threads.append(threading.Thread(target=crowd.idle))
    for each in threads:
        each.start()
    began, course = time.monotonic(), []
    for part in range(1, 10):
        time.sleep(max(0.0, began + SECONDS * part / 10 - time.monotonic()))
        course.append(memory(at, began))
    for each in threads:
        each.join()
    course.append(memory(at, began))
    for _ in range(300):
        if at.gauge("vllm:num_requests_running") + at.gauge("vllm:num_requests_waiting") == 0:
            break
        time.sleep(0.1)
    took, waited = sorted(crowd.took), sorted(crowd.waited)
    shares = [crowd.answered[each.name] for each in threads[:CONNECTIONS]]
    share = lambda of, p: 1e3 * of[min(len(of) - 1, int(p * len(of)))] if of else 0.0
    print(json.dumps({"seconds": SECONDS, "connections": CONNECTIONS, "idle": IDLE, "counts": crowd.counts,
                      "request_ms": {p: round(share(took, p), 1) for p in (0.5, 0.9, 0.99, 1.0)},
                      "first_token_of_a_stream_ms": {p: round(share(waited, p), 1) for p in (0.5, 0.9, 0.99, 1.0)},
                      "fairness": {"first_token_p99_over_median": round(share(waited, 0.99) / max(share(waited, 0.5), 1e-3), 2),
                                   "answers_a_connection": {"least": min(shares), "median": statistics.median(shares),
                                                            "most": max(shares)},
                                   "jain": round(sum(shares) ** 2 / max(1, len(shares) * sum(n * n for n in shares)), 4)},
                      "mean_request_ms": round(1e3 * statistics.mean(took), 1) if took else None,
                      "memory": course,
                      "preempted": at.gauge("vllm:num_preemptions")}, indent=1))
    check(crowd.counts["FAILED"] == 0, crowd.counts)
    check(at.gauge("vllm:num_requests_running") == 0, "nothing runs at rest")
    for each in at.ask("GET", "/v1/sessions")[1]["data"]:
        at.ask("DELETE", "/v1/sessions/" + each["id"].replace(" ", "%20"))
    check(at.gauge("kvcache_pages_in_use") == 0, "conversations alone hold pages at rest")
    at.stop()
    print(f"endurance.py: {sum(crowd.counts.values())} requests, {running.checks} checks hold")


main()
