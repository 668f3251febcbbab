"""The kinds of hostile clients that siege.py starts, and the process that a kind runs in.

An attack gets an `Attacker`, and returns a word for what came back: a status, or how the connection ended.
"""
import collections
import gzip
import json
import os
import random
import select
import socket
import struct
import threading
import time

HOST = b"Host: localhost\r\n"
MIB = 1 << 20
QUIET, HOSTILE, OVER = range(3)  # the phases that a process of attacks is told


class Attacker:
    """One thread of a kind: its random numbers, the server's port, and whether the hostile phase goes on."""

    def __init__(self, port, phase, seed):
        self.port, self.phase, self.dice, self.kept = port, phase, random.Random(seed), {}

    def goes_on(self):
        return self.phase.value == HOSTILE

    def once(self, name, make):
        """A large body, made at the first use."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def link(self, **options):
        link = socket.socket()
        for option, size in options.items():
            link.setsockopt(socket.SOL_SOCKET, getattr(socket, option), size)
        link.settimeout(20)
        try:
            link.connect(("127.0.0.1", self.port))
        except OSError:
            link.close()
            raise
        return link

    def send(self, *parts, most=MIB):
        """Sends parts until the server answers or closes. Returns the first `most` bytes of what it says in 20 s."""
        said, until = b"", time.monotonic() + 20
        with self.link() as link:
            try:
                for part in parts:
                    link.sendall(part)
                    if select.select([link], [], [], 0)[0]:
                        break
            except OSError:
                pass  # it may close before it has read all
            while self.goes_on() and time.monotonic() < until:
                if not select.select([link], [], [], 0.5)[0]:
                    continue
                try:
                    more = link.recv(65536)
                except OSError:
                    return said or b"reset"
                if not more:
                    return said or b"closed"
                said = (said + more)[:most]
        return said or b"no answer: gave up"

    def post(self, path, body, headers=b""):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return answered(self.send(b"POST " + path + b" HTTP/1.1\r\n" + HOST + headers + b"Connection: close\r\nContent-Length: %d\r\n\r\n"
                                  % len(body), body))


def answered(said):
    return said[9:12].decode() if said.startswith(b"HTTP/1.1 ") else said.decode("latin-1")[:40]


def chunked(path=b"/v1/completions", headers=b""):
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + headers + b"Transfer-Encoding: chunked\r\n\r\n"


def cut(link):
    """Closes a connection with a reset."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


def gzip_bomb(at):
    bomb = at.once("bomb", lambda: gzip.compress(b" " * (64 * MIB), 1))
    if at.dice.random() < 0.5:
        return at.post(b"/v1/completions", bomb, b"Content-Encoding: gzip\r\n")
    coded = chunked().replace(b": chunked", b": gzip, chunked")
    return answered(at.send(coded, b"%x\r\n" % len(bomb), bomb, b"\r\n0\r\n\r\n"))


def chunk_bomb(at):
    large = b"%x\r\n%s\r\n" % (65536, b" " * 65536)
    tiny = b"1;%s\r\n \r\n" % (b"x" * 1000) * 64
    trailers = b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(100))
    return answered(at.send(*at.dice.choice((
        [chunked()] + [large] * 200, [chunked()] + [tiny] * 200, [chunked(), b"0\r\n"] + [trailers] * 100,
        [chunked(), at.dice.choice((b"ffffffffffffffff", b"-1", b"7fffffffffffffff", b"0x5")) + b"\r\n"] + [large] * 10))))


def smuggling(at):
    """Nothing that follows a request of ambiguous length, or a refused body, is to be answered."""
    hidden = b"GET /v1/sessions HTTP/1.1\r\n" + HOST + b"\r\n"
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    size, coded, chunks = b"Content-Length: %d\r\n" % len(body), b"Transfer-Encoding: chunked\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head, rest = at.dice.choice((
        (size + coded, chunks), (coded + size, chunks), (size + b"Content-Length: 0\r\n", body), (size + size, body),
        (coded + coded, chunks), (b"Transfer-Encoding: xchunked\r\n", chunks), (b"Transfer-Encoding : chunked\r\n" + size, body),
        (b"Content-Length: %d\r\n" % (9 * MIB), hidden * 1000), (b"Content-Length: +%d\r\n" % len(body), body), (b"", body),
        (coded, b"-1\r\n"), (coded, b"5\r\nhelloX\r\n"), (size + b"Content-Encoding: gzip\r\n", body), (size + b"Origin: http://evil.example\r\n", body)))
    said = at.send(b"POST /v1/completions HTTP/1.1\r\n" + HOST + head + b"\r\n" + rest + hidden * at.dice.randrange(1, 20))
    return "SMUGGLED" if said.count(b"HTTP/1.1 ") > 1 else answered(said)


def drip(at, start, drop):
    """Sends a byte each half second until the server ends it."""
    with at.link() as link:
        link.sendall(start)
        while at.goes_on():
            try:
                link.sendall(drop())
                if select.select([link], [], [], 0.5)[0]:
                    return answered(link.recv(4096) or b"closed")
            except OSError:
                return "reset"
    return "dripped to the end"


def dripping_head(at):
    return drip(at, b"GET /health HTTP/1.1\r\nX: ", lambda: b"x")


def dripping_body(at):
    if at.dice.random() < 0.5:
        return drip(at, chunked(), lambda: b"1\r\n \r\n")
    return drip(at, b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 9999\r\n\r\n{", lambda: b" ")


def idle(at, most=2300):
    """Holds more connections than the server has, and opens 200 a second anew."""
    held, counts, ended = {}, collections.Counter(), select.epoll()
    while at.goes_on():
        for _ in range(min(100, most - len(held))):
            try:
                link = at.link()
                held[link.fileno()] = link
                ended.register(link, select.EPOLLIN)
            except OSError:
                counts["not opened"] += 1
        for number, _ in ended.poll(0.5):
            held.pop(number).close()  # which also takes it from `ended`
            counts["closed"] += 1
        time.sleep(0.1)
    counts["held at the end"] += len(held)
    for link in held.values():
        link.close()
    return counts


def hang_up(at):
    body = json.dumps({"prompt": "Ella", "max_tokens": 1900, "ignore_eos": True, "stream": True, "n": at.dice.choice((1, 1, 4))}).encode()
    text = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    where = at.dice.choice(("head", "body", "stream"))
    head = text.index(b"{")
    link = at.link()
    try:
        link.sendall(text[:{"head": at.dice.randrange(1, head), "body": at.dice.randrange(head, len(text)), "stream": len(text)}[where]])
        if where == "stream":
            link.recv(200)
        time.sleep(at.dice.random() * 0.2)
    finally:
        cut(link) if at.dice.random() < 0.5 else link.close()
    return "hung up in the " + where


def slow_reader(at):
    """Asks for streams, never reads them, and stays until the server ends it."""
    body = json.dumps({"prompt": "Ella", "max_tokens": 1900, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
    with at.link(SO_RCVBUF=4096) as link:
        link.sendall(b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        while at.goes_on():
            poll = select.poll()
            poll.register(link, select.POLLHUP | select.POLLERR | select.POLLRDHUP)
            if poll.poll(500):
                return "closed by the server"
    return "unread to the end"


FULL = [json.dumps(body).encode() for body in (
    {"messages": [{"role": "user", "content": "Where is the kite?"}], "max_tokens": 4, "temperature": 0.5, "seed": 7, "user": "m", "stop": ["x"]},
    {"prompt": ["Ella", [5, 6, 7]], "max_tokens": 4, "n": 2, "logprobs": 2, "logit_bias": {"5": 1.5}, "stream": True, "top_p": 0.5})]
PIECES = [b"[", b"{", b'"', b"\\", b"\\ud800", b"\\u0000", b"1e999", b"-1", b"null", b"\xff\xfe", b"\x00", b",", b":", b"}", b"9" * 400, b"-0.0", b"NaN"]


def malformed(at):
    body = bytearray(at.dice.choice(FULL))
    for _ in range(at.dice.randrange(1, 8)):
        from_, size = at.dice.randrange(len(body) + 1), at.dice.randrange(12)
        body[from_:from_ + at.dice.choice((0, size))] = at.dice.choice((b"", at.dice.choice(PIECES), bytes(body[:size]), at.dice.randbytes(1)))
    return at.post(at.dice.choice((b"/v1/chat/completions", b"/v1/completions", b"/v1/warm", b"/tokenize", b"/detokenize")), bytes(body))


def deep_nesting(at):
    depth = at.dice.choice((1000, 100_000, 4_000_000))
    body = at.dice.choice((b"[" * depth, b'{"prompt":' + b"[" * depth + b"]" * depth + b"}", b'{"a":' * (depth // 4), b"[" * depth + b"]" * depth,
                           b'{"messages":[{"role":"user","content":' + b"[" * depth + b"]" * depth + b"}]}"))
    return at.post(at.dice.choice((b"/v1/chat/completions", b"/v1/completions")), body[:8 * MIB])


def many_messages(at):
    one, other = b'{"role":"user","content":"a"},', b'{"role":"assistant","content":"bbbbbb"},'
    return at.post(b"/v1/chat/completions", at.once("many", lambda: b'{"max_tokens":1,"messages":[' + (one + other) * 85_000 + one[:-1] + b"]}"))


def long_strings(at):
    text = at.once("long", lambda: b"Ella lives in Velton. " * (8 * MIB // 22 - 40))
    return at.post(b"/v1/chat/completions", at.dice.choice((
        b'{"messages":[{"role":"user","content":"%s"}]}', b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"user":"%s"}',
        b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"stop":"%s"}', b'{"messages":[{"role":"%s","content":"x"}],"max_tokens":1}',
        b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"%s":1}')) % text)


def huge_n(at):
    return at.post(b"/v1/completions", {"prompt": at.dice.choice(("Ella", ["Ella lives"] * 128, ["Ella"] * 129)), "max_tokens": 1900,
                                        "n": at.dice.choice((17, 64, 10**9)), "logprobs": at.dice.choice((None, 20))})


def sessions(at):
    return at.post(b"/v1/chat/completions", {"messages": [{"role": "user", "content": f"Who is {at.dice.random()}?"}], "max_tokens": 1,
                                             "user": f"flood {at.dice.getrandbits(64)}"})


def salts(at):
    return at.post(b"/v1/completions", {"prompt": f"Who is {at.dice.random()}?", "max_tokens": 1, "cache_salt": f"{at.dice.getrandbits(64)}"})


def deletes(at):
    name = at.dice.choice((b"honest%%20%d" % at.dice.randrange(20), b"%d" % at.dice.getrandbits(64), b"x" * 60000, b"%00%ff", b"m"))
    method = at.dice.choice((b"DELETE /v1/sessions/" + name, b"GET /v1/sessions"))
    return answered(at.send(method + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"))


def tokenize(at):
    if at.dice.random() < 0.5:
        return at.post(b"/detokenize", at.once("ids", lambda: b'{"tokens":[' + b"7," * (4 * MIB - 100) + b"7]}"))
    return at.post(b"/tokenize", at.once("text", lambda: b'{"content":"%s"}' % (b"Ella lives in Velton, " * (8 * MIB // 22 - 10))))


# Of each kind: the attacks begun a second, at most, and how many are under way at once, at most.
KINDS = {gzip_bomb: (2, 2), chunk_bomb: (2, 2), smuggling: (5, 2), dripping_head: (16, 16), dripping_body: (16, 16), idle: (1, 1), hang_up: (5, 4),
         slow_reader: (1, 8), malformed: (10, 2), deep_nesting: (1, 1), many_messages: (0.2, 1), long_strings: (0.5, 1), huge_n: (0.2, 2),
         sessions: (10, 4), salts: (10, 4), deletes: (10, 2), tokenize: (0.5, 1)}


def run(kind, port, phase, seed, counts):
    """A process of one kind, until the phase is OVER. It then puts into `counts` the kind's name and what came back."""
    os.nice(19)
    rate, width = KINDS[kind]
    seen, lock = collections.Counter(), threading.Lock()

    def work(number):
        at = Attacker(port, phase, f"{seed} {kind.__name__} {number}")
        while phase.value != OVER:
            due = time.monotonic() + at.dice.random() * 2 * width / rate
            while time.monotonic() < due and phase.value != OVER:
                time.sleep(min(0.2, max(0.0, due - time.monotonic())))
            if not at.goes_on():
                continue
            try:
                came = kind(at)
            except OSError as fault:
                came = type(fault).__name__
            with lock:
                seen.update(came if isinstance(came, collections.Counter) else [came])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(width)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    counts.put((kind.__name__, dict(seen)))
