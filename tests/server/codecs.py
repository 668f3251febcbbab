#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The server with pages of each kind of codec: it says what generate says with the same codec, again from its cache.

    codecs.py SERVER MODEL GENERATE
"""
import json
import subprocess
import sys

from running import Server, check

program, model, generate = sys.argv[1:4]
TEXT = "The mayor of Oskel is Mark. Mark works as a baker. Oskel lies near the marsh. " * 6


def refused(*flags):
    done = subprocess.run([program, "--model", model, "--port", "0", *flags], capture_output=True, text=True, timeout=60)
    check(done.returncode == 1, f"{flags} ends the server")
    return done.stderr


for codec in ("f32", "int8", "k=hadamard_int4,v=codebook_3"):
    server = Server(program, model, "--codec", codec, "--page", "32")
    said = json.loads(subprocess.run([generate, "--model", model, "--codec", codec, "--page", "32", "--prompt", TEXT,
                                      "--max-tokens", "24", "--ignore-eos", "--json"],
                                     capture_output=True, text=True, timeout=60, check=True).stdout)
    for turn in range(2):
        status, reply = server.post("/v1/completions", prompt=TEXT, temperature=0, max_tokens=24, ignore_eos=True,
                                    return_token_ids=True)
        check(status == 200, f"{codec}: a prompt is answered")
        check(reply["choices"][0]["token_ids"] == said["ids"], f"{codec}: the answer is generate's, request {turn + 1}")
    tokens, cached = reply["usage"]["prompt_tokens"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    check(cached == (tokens - 1 if codec == "f32" else (tokens - 1) // 32 * 32), f"{codec}: {cached} of {tokens} again")
    status, reply = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "Hello."}], max_tokens=8)
    check(status == 200, f"{codec}: a chat is answered")
    status, _ = server.post("/v1/warm", text=TEXT, cache={"mode": "chunks"})
    check(status == 200, f"{codec}: a document is kept as a chunk")
    status, reply = server.post("/v1/completions", prompt="Here. " + TEXT, max_tokens=4, cache={"mode": "chunks"})
    check(status == 200, f"{codec}: chunks are reused")
    server.process.terminate()
    check(server.process.wait(60) == 0, f"{codec}: the server ends in order")

check("there are f32, bf16" in refused("--codec", "int5"), "an unknown codec is refused with the names")
check("--overflow sinks" in refused("--codec", "int8", "--overflow", "sinks"), "sinks need codecs of rows")
check("--page: int4_per_channel takes" in refused("--codec", "v=int4_per_channel", "--page", "16"), "a page too small")
print("the server serves from pages of three codecs")
