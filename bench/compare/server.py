"""A llama-server of one slot, asked with token ids over local HTTP."""
import http.client
import json
import random
import socket
import subprocess
import time
from pathlib import Path


class Server:
    """Runs while the `with` block does."""

    def __init__(self, program: Path, model: Path, threads: int, context: int, pages: str = "f16", more: tuple = ()):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = [str(word) for word in (
            program, "-m", model, "-t", threads, "-tb", threads, "-c", context, "-np", 1, "-fa", "on", "-ctk", pages,
            "-ctv", pages, "--host", "127.0.0.1", "--port", self.port, *more)]

    def __enter__(self) -> "Server":
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            if self.process.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self.process.returncode}: {' '.join(self.command)}")
            try:
                if json.loads(self.ask("GET", "/health")[1].read()).get("status") == "ok":
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError("llama-server does not answer")

    def __exit__(self, *_) -> None:
        self.process.terminate()
        self.process.wait()

    def ask(self, method: str, path: str, body: dict | None = None) -> tuple[float, http.client.HTTPResponse]:
        """The moment at which the request was sent, over a connection that stood before, and the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        text = json.dumps(body) if body else None
        began = time.perf_counter()
        connection.request(method, path, text, {"Content-Type": "application/json"})
        return began, connection.getresponse()

    def complete(self, prompt: list[int], count: int, cached: bool = True) -> dict:
        """Greedy tokens. Returns "seconds" from the request sent to the first token read, "tokens", and "timings",
        which are the server's own."""
        began, answer = self.ask("POST", "/completion", {
            "prompt": prompt, "n_predict": count, "stream": True, "cache_prompt": cached, "temperature": 0.0,
            "samplers": ["top_k"], "top_k": 1, "ignore_eos": True, "return_tokens": True})
        made = {"seconds": None, "tokens": []}
        while line := answer.readline():
            if not line.startswith(b"data: "):
                continue
            if made["seconds"] is None:
                made["seconds"] = time.perf_counter() - began
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            if not event.get("stop"):
                made["tokens"] += event.get("tokens", [])
            else:
                made["timings"] = event["timings"]
        return made

    def slot(self, action: str, file: str) -> None:
        """Saves or restores the slot's keys and values, where the server was started with --slot-save-path."""
        _, answer = self.ask("POST", f"/slots/0?action={action}", {"filename": file})
        if answer.status != 200:
            raise RuntimeError(answer.read().decode())
        answer.read()


class Ids:
    """Token ids that no prompt had before."""

    def __init__(self, vocabulary: int, seed: int):
        self.random, self.vocabulary = random.Random(seed), vocabulary

    def __call__(self, count: int) -> list[int]:
        return [self.random.randrange(3, self.vocabulary) for _ in range(count)]


def chat(server: Server, ids: Ids, add) -> None:
    """The ten-turn chat of bench/model: add(name, milliseconds) for every turn, warm, then cold."""
    history = ids(64)
    lengths = []
    for turn in range(1, 11):
        history += ids(16)
        lengths.append(len(history))
        heard = server.complete(history, 1)
        add(f"chat_warm_turn_{turn:02}", 1e3 * heard["seconds"])
        add(f"chat_warm_http_turn_{turn:02}", 1e3 * heard["seconds"] - heard["timings"]["prompt_ms"])
        reply = ids(64)
        server.complete(history + reply[:63], 0)  # as if it had said this reply; the last token is said and not run
        history += reply
    for turn, length in enumerate(lengths, 1):
        add(f"chat_cold_turn_{turn:02}", 1e3 * server.complete(ids(length), 1, cached=False)["seconds"])


def shared_system(server: Server, ids: Ids, add, system: int = 1024, own: int = 32, users: int = 6) -> None:
    common = ids(system)
    add("shared_system_cold", 1e3 * server.complete(common + ids(own), 1, cached=False)["seconds"])
    for _ in range(1, users):
        add("shared_system_warm", 1e3 * server.complete(common + ids(own), 1)["seconds"])


ORDERS = ((0, 1, 2, 3), (0, 1, 3, 2), (1, 0, 2, 3), (0, 2, 1, 3), (1, 0, 3, 2), (0, 1, 2, 3))


def permuted_documents(server: Server, ids: Ids, add, system: int = 64, document: int = 128, question: int = 32) -> None:
    """The orders of bench/model: milliseconds of all prompts together."""
    begin, documents = ids(system), [ids(document) for _ in range(4)]
    warm = cold = 0.0
    for order in ORDERS:
        warm += server.complete(begin + [x for i in order for x in documents[i]] + ids(question), 1)["seconds"]
    for _ in ORDERS:
        cold += server.complete(ids(system + 4 * document + question), 1, cached=False)["seconds"]
    add("permuted_documents_warm", 1e3 * warm)
    add("permuted_documents_cold", 1e3 * cold)


def speed(server: Server, ids: Ids, add, past: list[int], prompt: int, steps: int) -> None:
    """Tokens a second by the server's own clock behind a past that it holds."""
    ran = server.complete(past + ids(prompt), 1)["timings"]
    if ran["prompt_n"] != prompt:
        raise RuntimeError(f"{ran['prompt_n']} tokens ran, not {prompt}")
    add(f"prefill_{prompt}_d{len(past)}", ran["prompt_per_second"])
    said = server.complete((past or ids(1)) + ids(1), steps + 1)["timings"]
    add(f"generation_d{len(past)}", 1e3 * steps / said["predicted_ms"])
