#!/usr/bin/env python3
"""A server whose pages stay in a tier, which goes away, comes back, forgets and moves while clients ask.

    tiers.py SERVER MODEL [SECONDS]

Every request is to be answered, with the words that a server without a tier says. What is done to Redis: it is paused,
goes on, is killed, starts anew, is emptied, is full, and has room again; a node of a cluster gets the others' slots, and
another is killed. SECONDS (0.7) passes between two of these. How long requests took is reported, by what was done.
Then servers start on a disk without room, on damaged files, on links in place of files, on records that were forged, and
while Redis is down; each answers the same words, says on standard error what is wrong, counts it, and ends in order.
"""
import collections
import hashlib
import hmac
import os
import random
import resource
import shutil
import signal
import socket
import struct
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
    def __init__(self, directory, *options, runs=True):
        self.port, self.options = free_port(), options
        self.directory = directory / str(self.port)
        self.directory.mkdir()
        if runs:
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


def documents(tier):
    """Documents that one server warmed are placed by others, in orders that nobody saw, and not computed."""
    dice = random.Random(3)
    texts = [" ".join(dice.choices(WORDS, k=60)) + "." for _ in range(8)]

    def ask(at, order, start):
        tokens = lambda text: at.post("/tokenize", content=text, add_special_tokens=False)[1]["tokens"]
        parts = [tokens(texts[i]) for i in order]
        prompt = tokens(start) + sum(parts, []) + tokens("Where is Tom?")
        reply = at.post("/v1/completions", prompt=prompt, max_tokens=8, temperature=0, logprobs=2,
                        cache={"mode": "chunks", "recompute": "head:4"})[1]
        counts, all_of_them = reply["usage"]["kvcache"], sum(map(len, parts))
        check(counts["recomputed_tokens"] == 4 * len(order), counts)
        check(counts["approximate_tokens"] == all_of_them - 4 * len(order), counts)
        check(counts["prefilled_tokens"] + counts["exact_tokens"] == len(prompt) - all_of_them, counts)
        return reply["choices"]

    first, order = running.Server(SERVER, MODEL, "--tier", tier), [3, 1, 4, 0, 5, 7, 2, 6]
    for text in texts:
        status, warm = first.post("/v1/warm", text=text, cache={"mode": "chunks"})
        check(status == 200 and warm["chunk_tokens"] == warm["token_count"], warm)
    said = ask(first, order, "Read this.")
    first.stop()  # all is written then
    second = running.Server(SERVER, MODEL, "--tier", tier)
    check(ask(second, order, "Read this.") == said, "the same bits after a restart")
    third = running.Server(SERVER, MODEL, "--tier", tier)  # while the second one runs
    for start in "Look.", "Ella.", "Tom.":
        dice.shuffle(order)
        check(ask(third, order, start) == ask(second, order, start), "the same bits in another process")
    check(third.gauge("kvcache_tier_loaded_chunks") == 8, "they came from the tier")
    second.stop()
    third.stop()


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


class Heard:
    """A server with a tier, whose standard error is a file."""

    def __init__(self, directory, tier, *flags, **how):
        self.errors = directory / f"errors-{random.random()}"
        with open(self.errors, "w") as to:
            self.at = running.Server(SERVER, MODEL, *SMALL, "--tier", tier, *flags, stderr=to, **how)

    def words(self):
        return self.errors.read_text()

    def answers(self, known):
        for prompt, wanted in known:
            check(say(self.at, prompt) == wanted, "the tier changes no word")

    def metric(self, name):
        return self.at.gauge("kvcache_tier_" + name)

    def stop(self):
        """Ends in order. Returns what it said on standard error."""
        self.at.stop()
        return self.words()


def until(holds, words):
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.02)
    check(False, words)


def full_disk(directory, known):
    """What does not fit the disk is counted and not called stored, and the server ends in order."""
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (150000, resource.RLIM_INFINITY))
    one = Heard(directory, f"lmdb:{directory / 'full'}", preexec_fn=small_files)
    one.answers(known)
    until(lambda: one.metric("failures") > 0, "a full disk is counted")
    stored = one.metric("stored_pages")
    check(0 <= stored < len(known), f"what was not stored is not counted as stored: {stored}")
    check("pages were not stored" in one.stop(), "the server says at its end that pages were not stored")
    roomy = Heard(directory, f"lmdb:{directory / 'full'}")
    roomy.answers(known)
    check("warning" not in roomy.stop(), "the store is sound")


def damaged_files(directory, known, cases=24):
    """A store with a changed byte or without its end: the server starts, answers and ends."""
    place = directory / "damaged"
    whole = Heard(directory, f"lmdb:{place}")
    whole.answers(known)
    whole.stop()
    sound, dice, aside = (place / "data.mdb").read_bytes(), random.Random(7), 0
    trees = [at for at in range(0, len(sound), 4096) if sound[at + 10] in (1, 2, 8)]
    for case in range(cases):
        bad = bytearray(sound)
        if case % 6 == 5:
            del bad[dice.randrange(len(bad)):]
        else:
            bad[dice.choice(trees) + dice.randrange(200)] ^= dice.randrange(1, 256)
        shutil.rmtree(place)
        place.mkdir(mode=0o700)
        (place / "data.mdb").write_bytes(bad)
        one = Heard(directory, f"lmdb:{place}")
        one.answers(dice.sample(known, 2))
        set_aside = "data.mdb.damaged-1" in one.stop()
        check(set_aside == (place / "data.mdb.damaged-1").exists(), f"case {case}: a renamed file is told of")
        aside += set_aside
    check(aside > 2, f"{aside} of {cases} damaged stores were set aside")  # other damage is in free pages


def links(directory):
    """A link in place of a file of the store is refused, and its target unchanged."""
    for name in ("lock.mdb", "data.mdb"):
        place, target = directory / f"link-{name}", directory / f"target-{name}"
        place.mkdir()
        target.write_text("precious")
        (place / name).symlink_to(target)
        ended = subprocess.run([SERVER, "--model", MODEL, "--port", "0", "--tier", f"lmdb:{place}"], capture_output=True, text=True,
                               timeout=60)
        check(ended.returncode == 1 and name in ended.stderr and "not a regular file" in ended.stderr, ended)
        check(target.read_text() == "precious", "the target is unchanged")


def open_directory(directory, known):
    """A store that other users can write to needs a secret."""
    place = directory / "open"
    place.mkdir()
    place.chmod(0o777)
    for secret, warned in ({}, True), ({"KVCACHE_TIER_SECRET": "a secret of the servers"}, False):
        one = Heard(directory, f"lmdb:{place}", env={**os.environ, **secret})
        one.answers(known[:1])
        check(("can forge pages" in one.stop()) == warned, f"a warning: {warned}")


def reseal(record, secret):
    """A record with a changed row, sealed under a secret (docs/format.md)."""
    def mac(*parts):
        return hmac.new(seal, b"".join(parts), hashlib.sha256).digest()
    seal = hmac.new(secret, struct.pack("<Q", 12) + b"kvcache seal", hashlib.sha256).digest()
    new = bytearray(record)
    header, = struct.unpack_from("<Q", new, 24)
    new[header + 5] ^= 1
    for entry in range(256, 256 + 64 * struct.unpack_from("<I", new, 20)[0], 64):
        at, size = struct.unpack_from("<QQ", new, entry + 8)
        new[entry + 32:entry + 64] = mac(new[at:at + size])
    new[224:256] = mac(new[:224], new[256:header])
    return bytes(new)


class Values:
    """The values of a Redis server, which redis-cli cannot write as they are."""

    def __init__(self, port):
        self.link = socket.create_connection(("127.0.0.1", port))
        self.file = self.link.makefile("rb")

    def ask(self, *words):
        words = [word if isinstance(word, bytes) else word.encode() for word in words]
        self.link.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return self.reply()

    def reply(self):
        sort, rest = (line := self.file.readline())[:1], line[1:-2]
        if sort == b"$":
            return self.file.read(int(rest) + 2)[:-2]
        return [self.reply() for _ in range(int(rest))] if sort == b"*" else rest


def secrets(directory, known):
    """Servers of one secret share pages; a record that is forged without it is refused and counted."""
    redis = Redis(directory)
    tier = f"redis:127.0.0.1:{redis.port}"
    environment = {**os.environ, "KVCACHE_TIER_SECRET": "a secret of the servers"}
    file = directory / "secret"
    file.write_text("a secret of the servers\n")
    first = Heard(directory, tier, env=environment)
    first.answers(known)
    check("forge" not in first.stop(), "with a secret there is no warning")
    heir = Heard(directory, tier, "--tier-secret-file", str(file))
    heir.answers(known)
    check(heir.metric("loaded_tokens") > 0 and heir.metric("refused_pages") == 0, "a server with the secret reads the pages")
    heir.stop()
    values = Values(redis.port)
    keys = values.ask("KEYS", "*")
    check(len(keys) > len(known), keys)
    own = reseal(reseal(values.ask("GET", keys[0]), b"a guess of the forger"), b"a secret of the servers")
    check(own == values.ask("GET", keys[0]), "the forger knows the layout")
    for key in keys:
        values.ask("SET", key, reseal(values.ask("GET", key), b"a guess of the forger"))
    victim = Heard(directory, tier, "--tier-secret-file", str(file))
    victim.answers(known)
    check(victim.metric("refused_pages") > 0, "forged pages are counted")
    victim.stop()
    healed = Heard(directory, tier, env=environment)
    healed.answers(known)
    check(healed.metric("refused_pages") == 0 and healed.metric("loaded_tokens") > 0, "all forged pages were replaced")
    healed.stop()
    stranger = Heard(directory, tier)
    stranger.answers(known[:2])
    check(stranger.metric("loaded_tokens") == 0, "a server without the secret finds nothing")
    check("can forge pages" in stranger.stop(), "without a secret there is a warning")
    short = subprocess.run([SERVER, "--model", MODEL, "--tier", tier], env={**environment, "KVCACHE_TIER_SECRET": "short"},
                           capture_output=True, text=True, timeout=60)
    check(short.returncode == 1 and "16 to 4096 bytes" in short.stderr, short)
    redis.kill()


def full_and_late(directory, known):
    """Redis is down when the server starts, comes up, and is full: all of it is counted, and the server ends in order."""
    redis = Redis(directory, "--maxmemory-policy", "noeviction", runs=False)
    one = Heard(directory, f"redis:127.0.0.1:{redis.port}")
    check("the tier is not used now" in one.words(), "the server says that Redis is down")
    one.answers(known[:4])
    until(lambda: one.metric("failures") > 0, "a store that is down is counted")
    check(one.metric("stored_pages") == 0, "nothing is stored")
    redis.start()
    until(lambda: one.answers(known[:20]) or one.metric("loaded_tokens") > 0, "a store that comes up is used")
    redis.ask("CONFIG", "SET", "maxmemory", "1")
    before, stored = one.metric("failures"), one.metric("stored_pages")
    one.answers(known[20:])
    until(lambda: one.metric("failures") > before, "a full store is counted")
    check(one.metric("stored_pages") == stored, "what was not stored is not counted as stored")
    check("pages were not stored: redis: the server says: OOM" in one.stop(), "the server says why")
    redis.kill()


def main():
    directory = Path(tempfile.mkdtemp(prefix="kvcache-tiers-"))
    try:
        known = words_without_a_tier()
        restarts(directory, known)
        documents(f"lmdb:{directory / 'documents'}")
        full_disk(directory, known)
        damaged_files(directory, known)
        links(directory)
        open_directory(directory, known)
        if not (shutil.which("redis-server") and shutil.which("redis-cli")):
            print("SKIPPED: there is no redis-server")
            return
        one_server(directory, known)
        redis = Redis(directory)
        documents(f"redis:127.0.0.1:{redis.port}")
        redis.kill()
        cluster(directory, known)
        secrets(directory, known)
        full_and_late(directory, known)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"tiers.py: {running.checks} checks hold")


main()
