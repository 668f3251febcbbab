#!/usr/bin/env python3
"""What one key's flood does to another key's requests: the time to the first token, with and without it.

    flood.py SERVER MODEL [FLAGS OF THE SERVER]

A hundred requests at once of 300 words and 64 tokens each come from one key; meanwhile another key sends ten requests, one
after another, whose prompt of 150 words is cached.
"""
import http.client
import json
import statistics
import sys
import threading
import time

import running


def first_token(port, key, prompt, tokens):
    """Seconds to the first event of a stream."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    began = time.monotonic()
    link.request("POST", "/v1/completions",
                 json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}),
                 {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    got = link.getresponse()
    running.check(got.status == 200, f"{key}: {got.status}")
    got.readline()
    took = time.monotonic() - began
    got.read()
    return took


def main():
    at = running.Server(sys.argv[1], sys.argv[2], "--cache-mib", "512", "--page", "64", "--api-key", "flood", "--api-key", "honest",
                        *sys.argv[3:])
    known = " ".join(f"word{i}" for i in range(150))
    first_token(at.port, "honest", known, 4)
    quiet = [first_token(at.port, "honest", f"{known} quiet {i}", 4) for i in range(10)]
    flood = [threading.Thread(target=first_token, args=(at.port, "flood", " ".join(f"f{i}x{j}" for j in range(300)), 64), daemon=True)
             for i in range(100)]
    for each in flood:
        each.start()
    time.sleep(3)
    during = [first_token(at.port, "honest", f"{known} loud {i}", 4) for i in range(10)]
    running.check(any(each.is_alive() for each in flood), "the flood lasts as long as the honest requests")
    for name, took in (("alone", quiet), ("with the flood", during)):
        print(f"{name}: first token after {statistics.median(took):.3f} s ({min(took):.3f} to {max(took):.3f})")
    at.process.kill()


main()
