#!/usr/bin/env python3
"""The server where the system's limits are small: descriptors, threads, addresses. Idle clients then fill it, and others are answered.

    limits.py SERVER MODEL
"""
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import running
from running import check

SERVER, MODEL = sys.argv[1:3]
NOBODY = 65534
RESERVE = 8


def limited(*limits):
    """What a new process does before it runs the server: each limit holds for the soft and the hard one."""
    def limit():
        for which, most in limits:
            resource.setrlimit(which, (most, most))
    return limit


class Server(running.Server):
    """With what it writes on standard error as `said()`."""

    def __init__(self, *flags, **how):
        self.errors = tempfile.TemporaryFile("w+")
        super().__init__(SERVER, MODEL, *flags, stderr=self.errors, **how)

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def unused(self):
        """The descriptors of a server without connections: the last ones end within a second."""
        least = self.descriptors()
        for _ in range(50):
            time.sleep(0.02)
            least = min(least, self.descriptors())
        return least

    def settle(self, most):
        """Waits until the server has met the ends of other connections than those that hold `most` descriptors."""
        for _ in range(3000):
            if self.descriptors() <= most:
                return
            time.sleep(0.01)
        check(False, f"{self.descriptors()} descriptors stay, instead of {most}")

    def places(self):
        """The connections that it says it has room for."""
        found = re.findall(r"^warning: --connections is (\d+) instead of 2048, .*$", self.said(), re.M)
        check(len(found) == 1, f"one line says so: {self.said()}")
        return int(found[0])


def asked(at):
    """Nothing else would be answered before the idle clients of a full server have to leave, after 75 s."""
    check(at.ask("GET", "/health")[0] == 200 and at.ask("GET", "/metrics")[0] == 200, "health and metrics answer")
    status, got = at.post("/v1/completions", prompt="Ella lives in", max_tokens=4, temperature=0)
    check(status == 200 and got["usage"]["completion_tokens"] > 0, f"and so does a completion: {status} {got}")


def idle(at, count):
    """Opens connections that send nothing, or half of a request, and asks now and then."""
    links = []
    for n in range(count):
        link = socket.create_connection(("127.0.0.1", at.port), timeout=60)
        link.sendall((b"", b"GET /health")[n % 2])
        links.append(link)
        if n % 100 == 99:
            asked(at)
    asked(at)
    return links


def streams(at, count):
    """Opens streams that take longer than the test."""
    links = []
    body = json.dumps({"prompt": "Ella", "max_tokens": 1900, "ignore_eos": True, "stream": True}).encode()
    for _ in range(count):
        link = socket.create_connection(("127.0.0.1", at.port), timeout=60)
        link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        check(link.recv(12) == b"HTTP/1.1 200", "a stream begins")
        links.append(link)
    return links


def close(links):
    for link in links:
        link.close()


def descriptors():
    at = Server(preexec_fn=limited((resource.RLIMIT_NOFILE, 128)))
    places = at.places()
    check(40 < places < 128 - RESERVE and "128 descriptors" in at.said(), f"{places} of 128 descriptors")
    close(idle(at, 300))
    at.stop()
    # A soft limit below a sufficient hard one is raised.
    soft = Server(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 2200:
        check("--connections" not in soft.said(), "no less than was asked for")
    check(resource.prlimit(soft.process.pid, resource.RLIMIT_NOFILE)[0] > 64, "raised")
    close(idle(soft, 200))
    soft.stop()
    # With too few for anything it says so, and does not start.
    got = subprocess.run([SERVER, "--model", MODEL, "--port", "0", "--cache-mib", "8"], capture_output=True, text=True, timeout=60,
                         preexec_fn=limited((resource.RLIMIT_NOFILE, 24)))
    check(got.returncode == 1 and "--connections" in got.stderr and "24 descriptors" in got.stderr, got)


def descriptors_that_run_out():
    """The limit falls while it runs, as when other processes take the descriptors of the system."""
    at = Server("--connections", "200")
    check("--connections" not in at.said(), "there is room at first")
    asked(at)
    unused = at.unused()
    links = idle(at, 40)
    resource.prlimit(at.process.pid, resource.RLIMIT_NOFILE, (64, 64))
    links += idle(at, 200)
    close(links)
    at.settle(unused)
    # All that there are belong to answers: health and metrics have their own.
    busy = []
    resource.prlimit(at.process.pid, resource.RLIMIT_NOFILE, (44, 64))
    body = json.dumps({"prompt": "x", "max_tokens": 1})
    while not busy or at.ask("POST", "/v1/completions", body)[0] == 200:
        at.settle(unused + len(busy))
        busy += streams(at, 1)
        at.settle(unused + len(busy))
        check(len(busy) < 64, "descriptors run out")
    for _ in range(5):
        check(at.ask("GET", "/health")[0] == 200 and at.ask("GET", "/metrics")[0] == 200, "health has a reserve")
        status, got, _ = at.ask("POST", "/v1/completions", body)
        check(status == 503 and got["error"]["code"] == "connections", (status, got))
    close(busy)
    while at.ask("POST", "/v1/completions", body)[0] == 503:  # until the server has met the ends of their connections
        pass
    asked(at)
    at.stop()


def addresses():
    at = Server("--threads", "1", preexec_fn=limited((resource.RLIMIT_AS, 3 << 30)))
    places = at.places()
    check(8 < places < 1000 and "3072 MiB of addresses" in at.said(), f"{places} threads in 3 GiB")
    close(idle(at, places + 100))
    at.stop()
    # They run out while it runs.
    less = Server("--connections", "300")
    links = idle(less, 20)
    used = int(re.search(r"VmSize:\s*(\d+)", Path(f"/proc/{less.process.pid}/status").read_text())[1]) << 10
    resource.prlimit(less.process.pid, resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
    links += idle(less, 300)
    check("no more threads can be started" in less.said(), less.said())
    close(links)
    less.stop()


def threads():
    user = os.geteuid()

    def begin(most):
        """The limit is that of the user who runs it."""
        def limit():
            if user == 0:
                become_nobody()
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        return Server(preexec_fn=limit)

    if user == 0:  # who has no such limit
        tried = subprocess.run([SERVER, "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=become_nobody)
        if tried.returncode != 0:
            return print("limits.py: the limit of threads was not tried: another user cannot run the server")
    most = threads_of(user or NOBODY) + 100
    at = begin(most)
    places = at.places()
    check(20 < places < 100 and f"{most} processes and threads" in at.said(), f"{places} of 100 threads")
    close(idle(at, 200))
    at.stop()


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def threads_of(user):
    count = 0
    for each in Path("/proc").glob("[0-9]*/status"):
        try:
            text = each.read_text()
        except OSError:
            continue  # it has ended
        if int(re.search(r"Uid:\s*(\d+)", text)[1]) == user:
            count += int(re.search(r"Threads:\s*(\d+)", text)[1])
    return count


def main():
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(own[1], 4096) if own[1] != resource.RLIM_INFINITY else 4096, own[1]))
    descriptors()
    descriptors_that_run_out()
    addresses()
    threads()
    print(f"limits.py: {running.checks} checks hold")


main()
