"""A server that runs while a test asks it."""
import atexit
import http.client
import json
import re
import signal
import subprocess
from pathlib import Path

CLIENTS = Path(__file__).parents[2] / "build" / "clients" / "bin" / "python"  # what ./dev test installed clients for
checks = 0


def check(condition, words):
    global checks
    checks += 1
    if not condition:
        raise SystemExit(f"FAILED: {words}")


class Server:
    """Begun with the program, a model and flags; its port is one that was free. `how` goes to Popen."""

    def __init__(self, program, model, *flags, **how):
        unsaid = [word for flag in (("--cache-mib", "64"), ("--page", "16")) if flag[0] not in flags for word in flag]
        self.process = subprocess.Popen([program, "--model", model, "--port", "0", *unsaid, *flags],
                                        stdout=subprocess.PIPE, text=True, **how)
        atexit.register(self.process.kill)  # nothing stays behind a failure
        while True:
            line = self.process.stdout.readline()
            check(line, "the server starts")
            found = re.match(r"listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                return

    def ask(self, method, path, body=None, headers=None):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        link.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        got = link.getresponse()
        raw = got.read()
        link.close()
        return got.status, (json.loads(raw) if "json" in got.getheader("Content-Type", "") else raw), got

    def post(self, path, **body):
        status, reply, _ = self.ask("POST", path, body)
        return status, reply

    def chat(self, text, **more):
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": text}],
                         **{"temperature": 0, "max_tokens": 16, **more})

    def stream(self, path, **body):
        """The events of a stream, each checked to be whole UTF-8 and to end in a blank line."""
        _, raw, got = self.ask("POST", path, {**body, "stream": True})
        check(got.getheader("Content-Type").startswith("text/event-stream"), "a stream says what it is")
        check(isinstance(raw, bytes) and raw.endswith(b"data: [DONE]\n\n") and b"\r" not in raw, "a stream ends in [DONE]")
        events = raw.decode("utf-8").split("\n\n")
        check(events[-1] == "" and all(e.startswith("data: ") for e in events[:-1]), "events stand apart")
        return [json.loads(e[6:]) for e in events[:-2]]

    def gauge(self, name):
        _, raw, _ = self.ask("GET", "/metrics")
        return float(re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", raw.decode(), re.M)[1])

    def memory(self):
        """The most that was resident, in MiB."""
        return int(re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) // 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=60)
        check(self.process.returncode == 0 and "0 pages in use, invariants hold" in out, f"it ends in order: {out}")
