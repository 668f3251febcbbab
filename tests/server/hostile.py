#!/usr/bin/env python3
"""What hostile clients try: requests whose end is ambiguous, bodies that are bombs, pages of other sites, silence.

    hostile.py SERVER MODEL
"""
import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import running
from running import check

SERVER, MODEL = sys.argv[1:3]


class Server(running.Server):
    def __init__(self, *flags):
        super().__init__(SERVER, MODEL, *flags)


def origins(at):
    """A page of another site cannot use the server through a browser, by its own origin or by a name of its own."""
    here = f"127.0.0.1:{at.port}"
    body = json.dumps({"prompt": "x", "max_tokens": 1})
    for headers, status in (({"Origin": f"http://{here}"}, 200), ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403),
                            ({"Origin": f"http://localhost:{at.port}"}, 403), ({"Origin": f"http://{here}.evil.example"}, 403),
                            ({"Host": "evil.example"}, 403), ({"Host": f"evil.example:{at.port}"}, 403),
                            ({"Host": "localhost.evil.example"}, 403), ({"Host": "127.0.0.1.evil.example"}, 403),
                            ({"Host": "LocalHost"}, 200), ({"Host": "[::1]:80"}, 200), ({"Host": "10.0.0.1"}, 200),
                            ({"Content-Type": "text/plain", "Origin": "http://evil.example"}, 403)):
        got = at.ask("POST", "/v1/completions", body, headers)
        check(got[0] == status, (headers, got[:2]))
    link = http.client.HTTPConnection("127.0.0.1", at.port, timeout=60)
    link.putrequest("GET", "/v1/models")
    for key in ("Bearer one", "Bearer two"):
        link.putheader("Authorization", key)
    link.endheaders()
    got = link.getresponse()
    check(got.status == 400 and b"authorization" in got.read(), "two keys are none")


def framing(at):
    """Requests whose end is ambiguous, too far, or encoded are refused, and nothing after them runs as a request."""
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    inner = b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def replies(request):
        with socket.create_connection(("127.0.0.1", at.port), timeout=60) as link:
            link.settimeout(60)
            try:
                link.sendall(request)
            except OSError:
                pass  # it may close before it has read all
            got = b""
            while True:
                try:
                    more = link.recv(65536)
                except ConnectionError:
                    break
                if not more:
                    break
                got += more
        return got

    def one(status, headers, payload=b"", method=b"POST", version=b"1.1"):
        request = method + b" /v1/completions HTTP/" + version + b"\r\n" + headers + b"\r\n" + payload + inner
        got = replies(request)
        check(got.startswith(b"HTTP/1.1 %d " % status) and got.count(b"HTTP/1.1 ") == 1, (status, headers, got[:300]))

    host, size = b"Host: localhost\r\n", b"Content-Length: %d\r\n" % len(body)
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    chunked = b"Transfer-Encoding: chunked\r\n"
    one(400, host + size + chunked, chunks)
    one(400, host + chunked + size, chunks)
    one(400, host + size + b"Content-Length: 0\r\n", body)
    one(400, host + size + size, body)
    for length in (b"-1", b"+5", b"5, 5", b"0x10", b"five", b"5 5", b"1e3"):
        one(400, host + b"Content-Length: " + length + b"\r\n", body)
    one(400, host + b"Content-Length: 99999999999999999999999\r\n", body)
    one(413, host + b"Content-Length: 18446744073709551614\r\n", body)
    one(413, host + b"Content-Length: %d\r\n" % (9 << 20), b"x" * (9 << 20))
    for encoding in (b"gzip, chunked", b"chunked, chunked", b"identity", b"xchunked", b"chunked, gzip"):
        one(400, host + b"Transfer-Encoding: " + encoding + b"\r\n", chunks)
    one(400, host + chunked + chunked, chunks)
    one(400, host + chunked, chunks, version=b"1.0")
    one(400, size, body)
    one(400, host + host + size, body)
    one(411, host)
    one(400, host + b"Content-Length: \r\n", body)
    for method in (b"GET", b"HEAD", b"OPTIONS", b"DELETE"):
        one(400, host + b"Content-Length: %d\r\n" % len(inner), method=method)
        one(400, host + chunked, b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner), method=method)
    for coding in (b"gzip", b"GZIP", b"deflate", b"br", b"zstd", b"gzip, gzip"):
        one(415, host + size + b"Content-Encoding: " + coding + b"\r\n", body)
    before = at.memory()
    bomb = gzip.compress(b" " * (1 << 30), 1)
    one(415, host + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(bomb), bomb)
    for piece in (1, 4096, 1 << 20):
        many = b"%x\r\n%s\r\n" % (piece, b" " * piece)
        one(413, host + chunked, many * ((40 << 20) // len(many)) + b"0\r\n\r\n")
    check(at.memory() < before + 64, f"bodies are limited while they are read: {before} MiB, then {at.memory()}")
    one(431, host + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(500)) + size, body)
    for line in (b"X : y", b" folded", b"X", b"X: \x00", b": y", b"Content-Length : 5", b"Transfer-Encoding : chunked"):
        one(400, line + b"\r\n" + host + size, body)
    for bad in (b"-1\r\n", b"0x5\r\nhello\r\n", b"5 \r\nhello\r\n", b"ffffffffffffffffff\r\n", b"5\r\nhelloX\r\n", b"\r\n", b"5;\n\r\nhello\r\n"):
        one(400, host + chunked, bad + b"0\r\n\r\n")
    for trailer in (b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"X : y\r\n"):
        one(400, host + chunked, chunks[:-2] + trailer + b"\r\n")
    one(431, host + chunked, chunks[:-2] + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(500)) + b"\r\n")
    one(417, host + size + b"Expect: miracles\r\n", body)
    for line, status in ((b"GET http://other.example/health HTTP/1.1", 400), (b"GET health HTTP/1.1", 400), (b"GET  /health HTTP/1.1", 400),
                         (b"GET /health HTTP/2.0", 505), (b"GET /health HTTP/1.2", 505), (b"GET /health", 400), (b"/health", 400),
                         (b"PRI * HTTP/2.0", 505), (b"GET /health HTTP/1.1 x", 505), (b"G\x00T /health HTTP/1.1", 400),
                         (b"GET /" + b"x" * 70000 + b" HTTP/1.1", 431)):
        got = replies(line + b"\r\n" + host + b"\r\n" + inner)
        check(got.startswith(b"HTTP/1.1 %d " % status) and got.count(b"HTTP/1.1 ") == 1, (line[:60], got[:300]))
    # What is sound: chunks, whole or in small pieces, and several requests on one connection.
    ok = b"POST /v1/completions HTTP/1.1\r\n" + host
    small = b"".join(b"1\r\n%c\r\n" % c for c in body) + b"0\r\n\r\n"
    got = replies(ok + chunked + b"\r\n" + chunks + ok + chunked + b"\r\n" + small + ok + size + b"\r\n" + body +
                  b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    check(got.count(b"HTTP/1.1 200 ") == 4, got)
    end = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with_trailers = chunks[:-2] + b"X-Checksum: 5\r\nX-Other: y\r\n\r\n"
    extended = b"%x;name=value\r\n%s\r\n0;last\r\n\r\n" % (len(body), body)
    for request in (ok + chunked + b"Trailer: X-Checksum\r\n\r\n" + with_trailers, ok + chunked + b"\r\n" + extended,
                    ok + size + b"Expect: 100-continue\r\n\r\n" + body, ok + size + b"RANGE: bytes=0-0\r\n\r\n" + body,
                    b"GET / HTTP/1.1\r\nRange: bytes=0-0,0-1,0-2\r\n" + host + b"\r\n", b"GET /%68ealth?x=%00 HTTP/1.1\r\n" + host + b"\r\n"):
        got = replies(request + end)
        check(got.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").startswith(b"HTTP/1.1 200 ") and got.count(b" 404 Not Found") == 1 and
              b"Content-Range" not in got, (request[:80], got[:300]))
    got = replies(b"HEAD /health HTTP/1.1\r\n" + host + b"\r\n" + end)
    head, rest = got.split(b"\r\n\r\n", 1)
    check(head.startswith(b"HTTP/1.1 200 ") and b"Content-Length: " in head and rest.startswith(b"HTTP/1.1 404 "), got)
    # A client of HTTP/1.0 gets no chunks, and the end of the connection is the end of the answer.
    streamed = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True, "ignore_eos": True}).encode()
    got = replies(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(streamed) + streamed)
    head, rest = got.split(b"\r\n\r\n", 1)
    check(b"chunked" not in head.lower() and rest.startswith(b"data: ") and rest.endswith(b"data: [DONE]\n\n"), got)
    got = replies(b"POST /v1/completions HTTP/1.1\r\n" + host + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(streamed) + streamed)
    head, rest = got.split(b"\r\n\r\n", 1)
    check(b"Transfer-Encoding: chunked" in head and b"Connection: close" in head and b"Keep-Alive" not in head and
          rest.endswith(b"\r\n0\r\n\r\n"), got)


def slow_senders():
    """Clients that send a request byte by byte, or nothing, are given up in time, and take no place from others."""
    at = Server("--read-timeout", "1", "--connections", "12")
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n"
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for start, drip in ((b"", b"GET /health HTTP/1.1\r\nX: " + b"x" * 5000), (head, body * 100), (chunked, b"1\r\nx\r\n" * 5000)):
        link = socket.create_connection(("127.0.0.1", at.port), timeout=60)
        link.sendall(start)
        got, link_ends = b"", False
        link.settimeout(0.05)
        for n in range(len(drip)):
            try:
                link.sendall(drip[n:n + 1])
                more = link.recv(4096)
                link_ends = not more
                got += more
            except TimeoutError:
                continue
            except ConnectionError:
                link_ends = True
            if link_ends:
                break
        check(link_ends and got.startswith(b"HTTP/1.1 408 "), (start, n, got))
    # Twenty times as many idle and dripping connections as there are places.
    idle = []
    for n in range(240):
        link = socket.create_connection(("127.0.0.1", at.port), timeout=60)
        link.sendall((b"", b"GET /health", head, chunked + b"1\r\nx")[n % 4])
        idle.append(link)
        if n % 20 == 19:
            check(at.ask("GET", "/health")[0] == 200 and at.ask("GET", "/metrics")[0] == 200, "health and metrics answer")
            check(at.ask("POST", "/v1/completions", body)[0] == 200, "and so do completions")
    for link in idle:
        link.close()
    # While all places are taken by answers, health and metrics are answered, and others are told.
    streams = []
    for n in range(12):
        link = socket.create_connection(("127.0.0.1", at.port), timeout=60)
        long = json.dumps({"prompt": "Ella", "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
        link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(long) + long)
        check(link.recv(12) == b"HTTP/1.1 200", "a stream begins")
        streams.append(link)
    for _ in range(5):
        check(at.ask("GET", "/health")[0] == 200 and at.ask("GET", "/metrics")[0] == 200, "health has a reserve")
        status, got, reply = at.ask("POST", "/v1/completions", body)
        check(status == 503 and got["error"]["code"] == "connections" and reply.getheader("Retry-After") == "1", (status, got))
    for link in streams:
        link.close()
    status = 503  # until the server has met the ends of their connections
    while status == 503:
        status = at.ask("POST", "/v1/completions", body)[0]
    check(status == 200, "places are free again")
    at.stop()


def post_bytes(path, body):
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path, len(body)) + body


def large_requests():
    """Bodies of megabytes are read one after another; they hold up nothing else, and end with their clients, their time or the server."""
    many = json.dumps({"messages": [{"role": "user", "content": "hi"}] * 170000, "max_tokens": 4}).encode()
    long = json.dumps({"prompt": "library " * 900000, "max_tokens": 4}).encode()
    text = json.dumps({"content": "library " * 900000}).encode()
    kinds = ((b"/v1/chat/completions", many), (b"/v1/completions", long), (b"/tokenize", text), (b"/v1/warm", many), (b"/detokenize", text))
    small = dict(prompt="Ella lives in", max_tokens=4, temperature=0)
    at = Server("--bodies-mib", "64")
    _, wanted = at.post("/v1/completions", **small)
    before, links = at.memory(), []
    for n in range(30):
        link = socket.create_connection(("127.0.0.1", at.port), timeout=600)
        links.append(link)
        threading.Thread(target=lambda link=link, n=n: send_all(link, post_bytes(*kinds[n % len(kinds)])), daemon=True).start()
    for _ in range(20):
        check(at.post("/v1/completions", **small)[1]["choices"] == wanted["choices"], "small requests are answered next to large ones")
        check(at.ask("GET", "/health")[0] == 200, "and so is health")
    statuses = []
    for link in links[:20]:
        statuses.append(link.makefile("rb").readline()[9:12])
    check(set(statuses) <= {b"200", b"400", b"503"}, statuses)
    for link in links[20:]:
        link.close()  # before their answers
    check(at.memory() < before + (900 if "TSAN_OPTIONS" not in os.environ else 5000), f"the memory of large bodies is limited: {before} MiB, then {at.memory()}")
    status, got, _ = at.ask("POST", "/v1/completions", long)
    while status == 503:
        status, got, _ = at.ask("POST", "/v1/completions", long)
    check(status == 400 and "maximum context length" in got["error"]["message"], (status, got))
    for link in links[:20]:
        link.close()
    # The server ends while large bodies wait to be read.
    waiting = [socket.create_connection(("127.0.0.1", at.port), timeout=600) for _ in range(7)]
    for link in waiting:
        send_all(link, post_bytes(b"/v1/chat/completions", many))
    at.stop()
    # Time is over: of those that wait some are answered, and none is lost.
    brief = Server("--timeout", "1")
    waiting = [socket.create_connection(("127.0.0.1", brief.port), timeout=600) for _ in range(8)]
    for link in waiting:
        send_all(link, post_bytes(b"/v1/chat/completions", many))
    ends = [link.makefile("rb").readline()[9:12] for link in waiting]
    check(set(ends) <= {b"400", b"503"} and b"503" in ends, ends)
    check(brief.post("/v1/completions", **small)[1]["choices"] == wanted["choices"], "and others are answered")
    brief.stop()


def send_all(link, data):
    try:
        link.sendall(data)
    except OSError:
        pass  # it may be refused before it has sent all


def waits():
    """Requests wait for an earlier one of their conversation. Those whose clients leave let the next one in."""
    at = Server()
    long = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1900, "ignore_eos": True, "stream": True, "user": "ann"}).encode()
    short = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "user": "ann"}).encode()
    first = socket.create_connection(("127.0.0.1", at.port), timeout=600)
    first.sendall(post_bytes(b"/v1/chat/completions", long))
    check(first.recv(12) == b"HTTP/1.1 200", "a stream begins")
    leaving = [socket.create_connection(("127.0.0.1", at.port), timeout=600) for _ in range(6)]
    for link in leaving:
        link.sendall(post_bytes(b"/v1/chat/completions", short))
    forget = socket.create_connection(("127.0.0.1", at.port), timeout=600)
    forget.sendall(b"DELETE /v1/sessions/ann HTTP/1.1\r\nHost: localhost\r\n\r\n")
    last = socket.create_connection(("127.0.0.1", at.port), timeout=600)
    last.sendall(post_bytes(b"/v1/chat/completions", short))
    for link in (*leaving, forget, first):
        link.close()
    check(last.recv(12) == b"HTTP/1.1 200", "the last one is answered")
    last.close()
    at.stop()


def keyed(at, key, path, **body):
    return at.ask("POST", path, body, {"Authorization": f"Bearer {key}"})[:2]


def cached(reply):
    return reply[1]["usage"]["prompt_tokens_details"]["cached_tokens"]


def isolation():
    """Clients with different keys, or salts, reuse nothing of each other, and see no conversation of another."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys"
        file.write_text("\nann-key \r\n\nbob-key\n")
        os.environ["KVCACHE_API_KEYS"] = "eve-key, dan-key,"
        at = Server("--api-key-file", str(file), "--api-key", "fay-key")
        shared = Server("--api-key-file", str(file), "--api-key", "fay-key", "--share-prefixes")
        del os.environ["KVCACHE_API_KEYS"]
        file.write_text("\n \n")
        for flags, word in ((["--api-key-file", str(file)], "has no key"), (["--api-key-file", folder + "/none"], "cannot be read")):
            ends = subprocess.run([SERVER, "--model", MODEL, "--port", "0", *flags], capture_output=True, text=True, timeout=60)
            check(ends.returncode == 1 and word in ends.stderr, ends)
    keys = ("ann-key", "bob-key", "eve-key", "dan-key", "fay-key")
    prompt = dict(prompt="The secret of the house is that the red kite lives in the library of the old school", max_tokens=4, temperature=0)
    for wrong in ("", "none", "ann-key,", "ann-key dan-key", "ANN-KEY", "eve-key, dan-key"):
        check(keyed(at, wrong, "/v1/completions", **prompt)[0] == 401, wrong)
    first = [keyed(at, key, "/v1/completions", **prompt) for key in keys]
    check([cached(r) for r in first] == [0] * 5, "no key finds what another one has stored")
    again = [keyed(at, key, "/v1/completions", **prompt) for key in keys]
    tokens = again[0][1]["usage"]["prompt_tokens"]
    check([cached(r) for r in again] == [tokens - 1] * 5, again)
    check(len({r[1]["choices"][0]["text"] for r in first + again}) == 1, "and the answer is the same")
    salted = [[cached(keyed(at, key, "/v1/completions", **prompt, cache_salt=salt)) for key in keys] for salt in ("s", "t", "s")]
    check(salted == [[0] * 5, [0] * 5, [tokens - 1] * 5], salted)
    found = [cached(keyed(shared, key, "/v1/completions", **prompt)) for key in keys]
    check(found == [0] + [tokens - 1] * 4, found)
    found = [cached(keyed(shared, key, "/v1/completions", **prompt, cache_salt="s")) for key in keys]
    check(found == [0] + [tokens - 1] * 4, "a salt is apart from no salt where prefixes are shared")
    for bad in ("", "x" * 257, 5):
        status, got = keyed(at, "ann-key", "/v1/completions", **prompt, cache_salt=bad)
        check(status == 400 and "cache_salt" in got["error"]["message"], got)
    # Conversations of the same name.
    for key, word in (("ann-key", "kite"), ("bob-key", "book")):
        keyed(at, key, "/v1/chat/completions", messages=[{"role": "user", "content": f"Where is the {word}?"}], user="me", max_tokens=8)
    keyed(at, "ann-key", "/v1/chat/completions", messages=[{"role": "user", "content": "x"}], user="ann", max_tokens=8, cache_salt="s")

    def listed(key, **headers):
        return [s["id"] for s in at.ask("GET", "/v1/sessions", None, {"Authorization": f"Bearer {key}", **headers})[1]["data"]]
    check(listed("ann-key") == ["me"] and listed("bob-key") == ["me"] and listed("eve-key") == [], "each sees its own")
    check(listed("ann-key", **{"x-cache-salt": "s"}) == ["ann"] and listed("bob-key", **{"x-cache-salt": "s"}) == [], "of its salt")

    def forget(key, name):
        return at.ask("DELETE", f"/v1/sessions/{name}", None, {"Authorization": f"Bearer {key}"})[0]
    check(forget("eve-key", "me") == 404 and forget("bob-key", "ann") == 404 and listed("ann-key") == ["me"], "and forgets its own")
    check(forget("bob-key", "me") == 200 and listed("bob-key") == [] and listed("ann-key") == ["me"], "alone")
    at.stop()
    shared.stop()
    # Prompts of the lowest token ids, with and without a salt: they are text like any other.
    at = Server("--cache-mib", "2")
    for token in range(5):
        for salt in ({"cache_salt": "s"}, {}, {"cache_salt": "t"}):
            for length in (1, 16, 17, 40, 700):
                got = [at.post("/v1/completions", prompt=[token] * length + [50] * 3, max_tokens=2, temperature=0, **salt) for _ in range(2)]
                check(got[0][0] == 200 and got[0][1]["choices"] == got[1][1]["choices"] and cached(got[1]) == length + 2, got)
    at.stop()
    # More salts than places: who comes next takes the place of one that is not in use.
    few = Server("--tenants", "3")
    first = few.post("/v1/completions", **prompt)
    for n in range(40):
        got = few.post("/v1/completions", **prompt, cache_salt=f"salt {n}")
        check(got[0] == 200 and cached(got) == 0 and got[1]["choices"] == first[1]["choices"], got)
    check(cached(few.post("/v1/completions", **prompt)) == tokens - 1, "what is shared stays")
    few.stop()


def conversations():
    """A key that hangs up, or begins many conversations, displaces no idle one of a key that has fewer."""
    at = Server("--sessions", "4", "--api-key", "ann-key", "--api-key", "bob-key")

    def say(key, name, **more):
        status, got = keyed(at, key, "/v1/chat/completions", messages=[{"role": "user", "content": "Where is the kite?"}], user=name,
                            max_tokens=4, **more)
        check(status == 200, got)

    def listed(key):
        return [s["id"] for s in at.ask("GET", "/v1/sessions", None, {"Authorization": f"Bearer {key}"})[1]["data"]]
    for n in range(3):
        say("bob-key", f"b{n}")
    long = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1900, "ignore_eos": True, "stream": True})
    for n in range(20):
        link = socket.create_connection(("127.0.0.1", at.port), timeout=60)
        link.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ann-key\r\nx-session-id: a{n}\r\n"
                     f"Content-Length: {len(long)}\r\n\r\n{long}".encode())
        check(link.recv(12) == b"HTTP/1.1 200", "a stream begins")
        link.close()
        while listed("ann-key"):  # until the server has met the end of the connection
            pass
    check(listed("bob-key") == ["b0", "b1", "b2"], f"hang-ups evict nothing: {listed('bob-key')}")
    for n in range(10):
        say("ann-key", f"a{n}")
    check(listed("ann-key") == ["a8", "a9"] and len(listed("bob-key")) == 2, "each has its share")
    at.stop()


def main():
    at = Server()
    origins(at)
    framing(at)
    at.stop()
    slow_senders()
    large_requests()
    waits()
    isolation()
    conversations()
    print(f"hostile.py: {running.checks} checks hold")


main()
