#!/usr/bin/env python3
"""A server whose pages stay in a tier, which goes away, comes back, forgets and moves while clients ask.

    tiers.py SERVER MODEL [SECONDS]

Every request is to be answered, with the words that a server without a tier says. What is done to Redis: it is paused,
goes on, is killed, starts anew, is emptied, is full, and has room again; a node of a cluster gets the others' slots, and
another is killed. SECONDS (0.7) passes between two of these. How long requests took is reported, by what was done.
"""
import collections
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import running
from running import check

SERVER, MODEL = sys.argv[1:3]
PAUSE = float(sys.argv[3]) if len(sys.argv) > 3 else 0.7
WORDS = "Ella the kite library stands in a box of paper and Tom has two red boats on lake street where is".split()
SMALL = ["--cache-mib", "1"]  # memory for a few prompts: the others are the tier's to know


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Redis:
    def __init__(self, directory, *options):
        self.port, self.options = free_port(), options
        self.directory = directory / str(self.port)
        self.directory.mkdir()
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir",
             str(self.directory), "--logfile", "log", *self.options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running.atexit.register(self.process.kill)
        for _ in range(500):
            if self.ask("PING") == "PONG":
                return
            time.sleep(0.02)
        check(False, "redis-server starts")

    def ask(self, *command):
        return subprocess.run(["redis-cli", "-p", str(self.port), *command], capture_output=True, text=True).stdout.strip()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, what):
        self.process.send_signal(what)


def prompts():
    dice = random.Random(1)
    return [" ".join(dice.choices(WORDS, k=90)) for _ in range(24)]


def body(prompt):
    return {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}


def say(at, prompt):
    status, reply = at.post("/v1/completions", **body(prompt))
    check(status == 200, f"{status}: {reply}")
    return reply["choices"][0]["text"]


class Crowd:
    """Clients that ask on end, while things happen."""

    def __init__(self, at, known, clients=3):
        self.at, self.known, self.over, self.now = at, known, False, "as it should be"
        self.took, self.faults, self.lock = collections.defaultdict(list), [], threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(seed,)) for seed in range(clients)]
        for each in self.threads:
            each.start()

    def work(self, seed):
        dice = random.Random(seed)
        while not self.over:
            prompt, wanted = dice.choice(self.known)
            during, began = self.now, time.monotonic()
            try:
                text = say(self.at, prompt)
                if text != wanted:
                    self.faults.append(f"{during}: {text!r}, not {wanted!r}")
            except (SystemExit, OSError, ValueError, KeyError) as fault:
                self.faults.append(f"{during}: {fault!r}")
            with self.lock:
                self.took[during].append(time.monotonic() - began)

    def during(self, what, do=None):
        self.now = what
        if do:
            do()
        time.sleep(PAUSE)

    def end(self):
        self.over = True
        for each in self.threads:
            each.join()
        for what, took in self.took.items():
            took.sort()
            print(f"  {what}: {len(took)} requests, median {1e3 * took[len(took) // 2]:.0f} ms, longest {1e3 * took[-1]:.0f} ms")
        check(not self.faults, self.faults[:3])
        check(sum(len(t) for t in self.took.values()) > 20, "the clients had time to ask")
        check(self.at.gauge("kvcache_tier_loaded_tokens") > 0, "the tier was read")
        self.at.stop()


def words_without_a_tier():
    at = running.Server(SERVER, MODEL, *SMALL)
    known = [(prompt, say(at, prompt)) for prompt in prompts()]
    at.stop()
    return known


def restarts(directory, known):
    tier = f"lmdb:{directory / 'lmdb'}"
    for again in (False, True):
        at = running.Server(SERVER, MODEL, *SMALL, "--tier", tier)
        for prompt, wanted in known:
            check(say(at, prompt) == wanted, "the disk changes no word")
        check(not again or at.gauge("kvcache_tier_loaded_tokens") > 24 * 64, "a server that starts anew finds its pages")
        at.stop()


def one_server(directory, known):
    redis = Redis(directory, "--maxmemory", "64mb", "--maxmemory-policy", "noeviction")
    first = running.Server(SERVER, MODEL, *SMALL, "--tier", f"redis:127.0.0.1:{redis.port}")
    for prompt, _ in known:
        say(first, prompt)
    first.stop()  # all is written then
    crowd = Crowd(running.Server(SERVER, MODEL, *SMALL, "--tier", f"redis:127.0.0.1:{redis.port}"), known)
    crowd.during("as it should be")
    check(crowd.at.gauge("kvcache_tier_loaded_tokens") > 0, "what one server has stored another reads")
    crowd.during("paused", lambda: redis.signal(signal.SIGSTOP))
    crowd.during("goes on", lambda: redis.signal(signal.SIGCONT))
    crowd.during("killed", redis.kill)
    crowd.during("started anew", redis.start)
    crowd.during("emptied", lambda: redis.ask("FLUSHALL"))
    crowd.during("full", lambda: redis.ask("CONFIG", "SET", "maxmemory", "1"))
    crowd.during("has room", lambda: redis.ask("CONFIG", "SET", "maxmemory", "64mb"))
    crowd.end()
    redis.kill()


def cluster(directory, known):
    nodes = [Redis(directory, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port",
                   str(free_port())) for _ in range(3)]
    # redis-cli finds nodes by their clients' port alone, so they are joined by hand.
    for node, (low, high) in zip(nodes, ((0, 5460), (5461, 10922), (10923, 16383))):
        check(node.ask("CLUSTER", "ADDSLOTSRANGE", str(low), str(high)) == "OK", "slots are given")
    bus = nodes[0].ask("CLUSTER", "NODES").split("@")[1].split()[0].split(",")[0]
    for node in nodes[1:]:
        check(node.ask("CLUSTER", "MEET", "127.0.0.1", str(nodes[0].port), bus) == "OK", "nodes meet")
    for _ in range(500):
        if all("cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in nodes):
            break
        time.sleep(0.02)
    crowd = Crowd(running.Server(SERVER, MODEL, *SMALL, "--tier", f"redis:127.0.0.1:{nodes[1].port}"), known)
    crowd.during("a cluster")
    crowd.during("slots move", lambda: reshard(nodes[0], nodes[1]))
    crowd.during("a node killed", nodes[2].kill)
    crowd.end()
    for node in nodes[:2]:
        node.kill()


def reshard(giver, heir):
    """Moves the slots that have keys, one by one, as redis-cli does."""
    ids = [node.ask("CLUSTER", "MYID") for node in (giver, heir)]
    slots = sorted({int(giver.ask("CLUSTER", "KEYSLOT", key)) for key in giver.ask("KEYS", "*").split()})[:12]
    check(slots, "the cluster has pages")
    for slot in map(str, slots):
        check(heir.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0]) == "OK", "a slot is taken")
        check(giver.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1]) == "OK", "a slot is given")
        while keys := giver.ask("CLUSTER", "GETKEYSINSLOT", slot, "100").split():
            giver.ask("MIGRATE", "127.0.0.1", str(heir.port), "", "0", "5000", "REPLACE", "KEYS", *keys)
        for node in (heir, giver):
            check(node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1]) == "OK", "a slot has moved")


def main():
    directory = Path(tempfile.mkdtemp(prefix="kvcache-tiers-"))
    try:
        known = words_without_a_tier()
        restarts(directory, known)
        if not (shutil.which("redis-server") and shutil.which("redis-cli")):
            print("SKIPPED: there is no redis-server")
            return
        one_server(directory, known)
        cluster(directory, known)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"tiers.py: {running.checks} checks hold")


main()
