#!/usr/bin/env python3
"""Twenty honest users of a server that hostile clients attack: they get the answers of a quiet server, about as soon.

    siege.py SERVER MODEL [SECONDS [SEED [KINDS]]]

SECONDS (1800) of attacks alternate with quiet phases of a quarter of their length, because a machine that others use has a speed of
its own at each moment: the times of the attacked phases are compared with those of the quiet ones of the same run. KINDS, separated
by commas, limits the attacks to some of those in attacks.py. Each kind is a process of its own with a nice value of 19, because real
attackers work on machines of their own and take no time from the server and the honest users.

An honest user holds a connection, asks for a stream (greedy, or drawn with a seed), pauses from 0.2 to 1.0 s, and asks again. Like
real clients it retries after 429 and 503, as Retry-After says, and on a connection that was closed before a response began. Its time
to the first token is measured from its first attempt; the time from the successful attempt is told too.

It holds if every honest answer is the one of a quiet server, the 99th percentile of the time to the first token is at most 3 times the
quiet one, the memory at the end is at most 10 % above its level after 5 minutes (a sixth of a shorter run), and the server ends in order.
"""
import collections
import http.client
import json
import multiprocessing
import random
import re
import resource
import statistics
import sys
import threading
import time
from pathlib import Path

import attacks
import running
from attacks import HOSTILE, OVER, QUIET
from running import check

SERVER, MODEL = sys.argv[1:3]
SECONDS = int(sys.argv[3]) if len(sys.argv) > 3 else 1800
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(2**32)
KINDS = [each for each in attacks.KINDS if len(sys.argv) < 6 or each.__name__ in sys.argv[5].split(",")]
USERS, PATIENCE, SETTLING = 20, 60, 5  # seconds that a user asks on; seconds after an attack that are measured in neither phase
PHASE = min(120.0, SECONDS / 2)


def conversations():
    """What honest users ask: the path, and a body whose answer is determined."""
    notes = json.loads((Path(MODEL) / "conversation.json").read_text())["turns"][0].split("\n")[1:]
    made = []
    for n in range(40):
        note = notes[n % len(notes)][2:]
        body = {"max_tokens": 8 + n % 24, "ignore_eos": True, "stream": True, "seed": n, "temperature": 0.8 if n % 4 < 2 else 0}
        if n % 2:
            made.append(("/v1/completions", {**body, "prompt": note}))
            continue
        said = [{"role": ("user", "assistant")[i % 2], "content": each} for i, each in enumerate((note + " Who is it?").split(". "))]
        named = {"user": ""} if n % 8 == 0 else {}  # each user has a name of its own
        made.append(("/v1/chat/completions", {**body, **named, "messages": said[:len(said) - 1 + len(said) % 2]}))
    return made


def text_of(raw):
    """The text of a stream; none if it is not whole."""
    events = raw.decode().split("\n\n")
    if events[-2:] != ["data: [DONE]", ""]:
        return None
    choices = [json.loads(each[6:])["choices"][0] for each in events[:-2]]
    return "".join(each["text"] if "text" in each else each["delta"].get("content", "") for each in choices)


class Honest:
    """The users: their answers, and for each phase how long they waited for a first token."""

    def __init__(self, wanted):
        self.wanted, self.lock, self.over, self.port = wanted, threading.Lock(), False, None
        self.crashed = False  # nothing that is asked after a crash counts
        self.phase = None  # the number of the phase; none while it settles
        self.counts, self.wrong = collections.Counter(), []
        self.waited = collections.defaultdict(list)  # by phase: seconds from the first attempt, and from the successful one

    def ask(self, link, path, body):
        """The raw stream, and the moments of the first attempt, the successful one, and its first token."""
        began, raw = time.monotonic(), json.dumps(body)
        while time.monotonic() < began + PATIENCE and not self.crashed:
            fresh, sent = link.sock is None, time.monotonic()
            try:
                link.request("POST", path, raw, {"Content-Type": "application/json"})
                got = link.getresponse()
            except TimeoutError:
                break
            except (http.client.HTTPException, OSError):
                link.close()
                self.count("retried: new connection closed" if fresh else "retried: kept connection closed")
                time.sleep(0.1 if fresh else 0)
                continue
            if got.status not in (429, 503):
                said = got.readline()
                first = time.monotonic()
                return (said + got.read() if got.status == 200 else f"{got.status} {said}".encode()), began, sent, first
            code = json.loads(got.read())["error"]["code"]
            self.count(f"retried: {got.status} {code}")
            time.sleep(float(got.getheader("Retry-After", "1")))
        return b"no answer in time", began, began, time.monotonic()

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def work(self, user):
        dice, link = random.Random(f"{SEED} {user}"), http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        while not self.over:
            time.sleep(dice.uniform(0.2, 1.0))
            (path, body), text = dice.choice(self.wanted)
            phase, body = self.phase, {**body, **({"user": f"honest {user}"} if "user" in body else {})}
            try:
                raw, began, sent, first = self.ask(link, path, body)
            except (http.client.HTTPException, OSError) as fault:
                raw, began, sent, first = repr(fault).encode(), 0.0, 0.0, 0.0
            if self.crashed:
                return
            good = raw.startswith(b"data: ") and text_of(raw) == text
            with self.lock:
                self.counts["answers" if good else "WRONG"] += 1
                if not good:
                    link.close()
                    self.wrong.append((phase, body, raw[-300:]))
                if phase is not None and first > 0:
                    self.waited[phase].append((first - began, first - sent))


def percentiles(waited, which):
    of = sorted(each[which] for each in waited)
    return [round(1e3 * of[min(len(of) - 1, int(p * len(of)))], 1) if of else float("nan") for p in (0.5, 0.9, 0.99, 1.0)]


class Memory:
    """What is resident, each second and by phase."""

    def __init__(self, at):
        self.at, self.began, self.course = at, time.monotonic(), collections.defaultdict(list)

    def note(self, phase):
        status = Path(f"/proc/{self.at.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s*(\d+)", status)  # not in a process that has ended
        if found:
            self.course[phase].append(int(found[1]) / 1024)


def quiet_answers():
    at = running.Server(SERVER, MODEL)
    asked = [(each, text_of(at.ask("POST", *each)[1])) for each in conversations()]
    at.stop()
    check(all(text for _, text in asked), "a quiet server answers")
    return asked


def main():
    print(f"seed {SEED}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    honest = Honest(quiet_answers())
    at = running.Server(SERVER, MODEL)
    honest.port = at.port
    fork = multiprocessing.get_context("fork")
    phase, counts = fork.Value("i", QUIET), fork.SimpleQueue()
    hostile = [fork.Process(target=attacks.run, args=(kind, at.port, phase, SEED, counts), daemon=True) for kind in KINDS]
    users = [threading.Thread(target=honest.work, args=(n,)) for n in range(USERS)]
    for each in hostile + users:
        each.start()

    memory, ends, crashed = Memory(at), {}, None  # `ends`: by phase, in seconds
    plan = [QUIET, HOSTILE] * max(1, round(SECONDS / PHASE)) + [QUIET]
    for number, now in enumerate(plan):
        phase.value = now
        if now == QUIET:
            honest.phase = None
            time.sleep(SETTLING)
        honest.phase = number
        until = time.monotonic() + (PHASE if now == HOSTILE else max(10, PHASE / 4))
        while time.monotonic() < until and crashed is None:
            time.sleep(1)
            memory.note(number)
            crashed = at.process.poll()
            honest.crashed = crashed is not None
        ends[number] = time.monotonic() - memory.began
        resident, waited = memory.course[number] or [0], honest.waited[number]
        print(f"{ends[number]:6.0f} s  {'hostile' if now == HOSTILE else 'quiet':7}  resident {statistics.median(resident):5.0f} MiB, at most "
              f"{max(resident):5.0f}  first token of {len(waited):5d}: {percentiles(waited, 0)} ms", flush=True)
        if crashed is not None:
            break
    honest.over, phase.value = True, OVER
    for each in users:
        each.join()
    print("\nkind: attacks begun a second and at once, at most: what came back")
    unsound = 0
    for _ in hostile:
        name, seen = counts.get()
        print(f"  {name}: {attacks.KINDS[getattr(attacks, name)]}: {dict(sorted(seen.items()))}")
        unsound += sum(count for what, count in seen.items() if what in ("SMUGGLED", "500"))
    print(f"\nhonest: {dict(honest.counts)}")
    for each in honest.wrong[:10]:
        print("  WRONG:", each)
    quiet, attacked = ([each for number, now in enumerate(plan) if now == kind for each in honest.waited[number]] for kind in (QUIET, HOSTILE))
    for name, waited in (("quiet", quiet), ("attacked", attacked)):
        print(f"time to first token, {name}: {percentiles(waited, 0)} ms from the first attempt, {percentiles(waited, 1)} ms from the "
              "successful one (50th, 90th, 99th percentile, longest)")

    mark, under_attack = min(300.0, SECONDS / 6), [number for number in ends if plan[number] == HOSTILE]
    level = statistics.median(memory.course[next((number for number in under_attack if ends[number] >= mark), under_attack[0])])
    last, after = (statistics.median(memory.course[number] or [0]) for number in (under_attack[-1], max(ends)))
    slower = percentiles(attacked, 0)[2] / percentiles(quiet, 0)[2]
    limits = {f"the server runs to the end; it ended with {crashed}": crashed is None,
              f"every honest answer is that of a quiet server; {len(honest.wrong)} are not": not honest.wrong,
              f"no request is smuggled and none gets a 500; {unsound} do": unsound == 0,
              f"memory stays within 10 % of {level:.0f} MiB; it is {last:.0f} at the end, {after:.0f} after it": crashed is None and max(last, after) <= 1.1 * level,
              f"the 99th percentile of the time to the first token is at most 3 times the quiet one; it is {slower:.2f} times": slower <= 3}
    print()
    for words, holds in limits.items():
        print("holds: " if holds else "FAILED:", words)
    if crashed is None:
        at.stop()
    check(all(limits.values()), "the limits above")
    print(f"siege.py: {honest.counts['answers']} honest answers, {running.checks} checks hold")


main()
