#!/usr/bin/env python3
"""How well a client can guess what another one has sent, from the number of cached tokens and from the time to the first token.

    guessing.py SERVER MODEL [TRIALS]

In each trial a client sends a prompt with a secret, and another client, with a key of its own, sends a guess, which is right in
half of the trials. The area under the curve (AUC) of each signal is the chance that a right guess looks more cached than a wrong one:
0.5 tells nothing, 1 tells all. Where prefixes are shared on purpose the attack works, which shows that it is one.
"""
import http.client
import json
import random
import sys
import time

import running
from running import check

SERVER, MODEL = sys.argv[1:3]
TRIALS = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
WORDS = "kite book door school library river garden morning winter letter window street paper stone".split()
COMMON = "The notes of the house say who lives where, and what each one keeps in the room of the old school. "


def auc(right, wrong):
    """Of all pairs, how often the right one is greater; half for equal ones."""
    ranked = sorted([(value, 1) for value in right] + [(value, 0) for value in wrong])
    total, at = 0.0, 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        total += sum(kind for _, kind in ranked[at:end]) * (at + (end - at + 1) / 2)
        at = end
    return (total - len(right) * (len(right) + 1) / 2) / (len(right) * len(wrong))


def attack(trials, draw, *flags):
    at = running.Server(SERVER, MODEL, "--api-key", "victim", "--api-key", "attacker", *flags)
    links = {key: http.client.HTTPConnection("127.0.0.1", at.port, timeout=60) for key in ("victim", "attacker")}

    def send(key, prompt):
        """Returns the cached tokens, and the seconds to the first byte of the answer."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True,
                           "stream_options": {"include_usage": True}})
        began = time.perf_counter()
        links[key].request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
        reply = links[key].getresponse()
        first = reply.read(1)
        took = time.perf_counter() - began
        events = (first + reply.read()).decode().split("\n\n")
        usage = [json.loads(e[6:])["usage"] for e in events if '"usage":{' in e][-1]
        return usage["prompt_tokens_details"]["cached_tokens"], took

    def secret():
        return " ".join(draw.choice(WORDS) for _ in range(40))

    send("attacker", COMMON)
    seen = {True: [], False: []}
    for _ in range(trials):
        kept, right = secret(), draw.random() < 0.5
        send("victim", COMMON + kept)
        seen[right].append(send("attacker", COMMON + (kept if right else secret())))
    at.stop()
    # More cached tokens, and less time, speak for a right guess.
    return (auc([c for c, _ in seen[True]], [c for c, _ in seen[False]]),
            auc([-t for _, t in seen[True]], [-t for _, t in seen[False]]))


def main():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    counts, times = attack(TRIALS, draw)
    print(f"a key each: AUC of cached tokens {counts:.3f}, of time to first token {times:.3f} over {TRIALS} trials")
    check(counts <= 0.55, "the count of cached tokens tells nothing")
    check(times <= 0.55, "nor does the time")
    counts, times = attack(min(TRIALS, 200), draw, "--share-prefixes")
    print(f"shared: AUC of cached tokens {counts:.3f}, of time to first token {times:.3f}")
    check(counts > 0.99, "where prefixes are shared the attack works")
    print(f"guessing.py: {running.checks} checks hold")


main()
