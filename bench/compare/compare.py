#!/usr/bin/env python3
"""kvcache beside its peers: the same weights, in turn, on the same machine: random ones, or those of a GGUF file (--gguf), which
this library runs in the forms of --dtypes: blocks, exact; blocks-int8, with int8 activations. Without a peer's path, a GGUF file is run by
llama-cpp-python too, if this Python has it.

Each part can run alone, a round and a number of threads at a time:
--state keeps the samples and later rounds add to it, --report prints the tables of all that it holds.

    speed      a prompt of 512 tokens and an answer of 32 at each depth; llama-bench
    served     the same by llama-server's own clock: it knows F32 pages, and deep pasts come from a file
    chat       ten turns: milliseconds to the first token, warm and cold; llama-server
    shared     users that share a system prompt
    documents  prompts of the same documents in other orders
    zero       what the cache costs a prompt that it knows nothing of; ours alone
    quant      quant.cpp's program, token by token
    agree      whether llama-server says the same tokens; nothing is timed
"""
import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import tables
import weights
from server import Ids, Server, chat, permuted_documents, shared_system, speed
from state import State

PROMPT, STEPS = 512, 32
PARTS = ("speed", "served", "chat", "shared", "documents", "zero", "quant", "agree")


def run(command: list) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-400:]}")
    return done.stdout


class Turn:
    """One round of one part with one type of weights and one number of threads."""

    def __init__(self, flags, state: State, paths: dict[str, Path], dtype: str, threads: int):
        self.f, self.state, self.paths, self.dtype, self.threads = flags, state, paths, dtype, threads
        self.ids = Ids(weights.SHAPES[flags.shape].vocabulary, len(json.dumps(state.samples)))

    def ours(self, scenario: str, depth: int = 0) -> None:
        """One round of our program; its rows become the samples ours/DTYPE/NAME/tTHREADS and .../limit. Beside the peers'
        q8_0 our int8 weights, made of the F32 ones."""
        stored, dtype, more = ("f32", "int8", ["--int8"]) if self.dtype == "q8_0" else (self.dtype, self.dtype, [])
        if self.f.gguf and self.dtype == "blocks-int8":
            more = ["--int8"]
        if not self.f.program or "hf-" + stored not in self.paths:
            return
        with tempfile.NamedTemporaryFile(suffix=".json") as rows:
            run([self.f.program, "--model", self.paths["hf-" + stored], "--threads", self.threads, "--depths", depth,
                 "--only", scenario, "--rounds", 1, "--prompt", PROMPT, "--steps", STEPS, "--json", rows.name, *more])
            for row in json.loads(Path(rows.name).read_text()):
                name = f"ours/{dtype}/{row['name']}/t{row['threads']}"
                self.state.add(name, row["value"])
                if row["limit"]:
                    self.state.add(name + "/limit", row["limit"])

    def theirs(self, kind: str):
        return lambda name, value: self.state.add(f"{kind}/{self.dtype}/{name}/t{self.threads}", value)

    def server(self, context: int, pages: str, *more) -> Server:
        return Server(self.f.llama_server, self.paths["gguf-" + self.dtype], self.threads, context, pages, more)

    def speed(self) -> None:
        for depth in self.f.depths:
            self.ours("prefill,generation", depth)
            if self.f.python_peer:
                self.python_peer(depth)
            if not self.f.llama_bench:
                continue
            text = run([self.f.llama_bench, "-m", self.paths["gguf-" + self.dtype], "-t", self.threads, *self.bench_tests(depth),
                        "-fa", "0,1", "-r", 2, "-o", "json", *self.f.llama_arguments.split()])
            for test in json.loads(text):
                name = "generation" if test["n_gen"] else f"prefill_{PROMPT}"
                for value in test["samples_ts"]:
                    self.theirs("llama-bench f16" if test["flash_attn"] else "llama-bench f16 plain")(f"{name}_d{depth}", value)

    def bench_tests(self, depth: int) -> list:
        """A prompt and an answer after `depth` tokens; ik_llama.cpp's llama-bench has only answers at a depth."""
        if "--n-depth" in run([self.f.llama_bench, "--help"]):
            return ["-d", depth, "-p", PROMPT, "-n", STEPS]
        return ["-p", 0, "-n", 0, "-gp", f"{depth},{STEPS}"] if depth else ["-p", PROMPT, "-n", STEPS]

    def python_peer(self, depth: int) -> None:
        text = run([sys.executable, Path(__file__).with_name("python_peer.py"), self.paths["gguf-" + self.dtype], self.threads,
                    PROMPT, STEPS, depth])
        for row in map(json.loads, text.splitlines()):
            self.theirs(row["who"])(row["name"], row["value"])

    def past(self, depth: int) -> list[int]:
        return Ids(weights.SHAPES[self.f.shape].vocabulary, 2048)(depth)

    def past_file(self, depth: int, pages: str) -> str:
        return f"{self.f.shape}-{pages}-{depth}.slot"

    def prepare(self) -> None:
        """Writes the pasts that `served` reads, a step behind the one before, so that no step takes long."""
        step = 2048
        for pages in self.f.pages:
            for end in range(step, max(self.f.depths) + 1, step):
                if (self.f.models / self.past_file(end, pages)).exists():
                    continue
                with self.server(end + 64, pages, "--slot-save-path", f"{self.f.models}/") as server:
                    if end > step:
                        server.slot("restore", self.past_file(end - step, pages))
                    server.complete(self.past(end), 0)
                    part = self.f.models / (self.past_file(end, pages) + ".part")
                    server.slot("save", part.name)
                    part.rename(self.f.models / self.past_file(end, pages))

    def served(self) -> None:
        for depth in self.f.depths:
            self.ours("prefill,generation", depth)
            for pages in self.f.pages if self.f.llama_server else ():
                with self.server(depth + PROMPT + 64, pages, "--slot-save-path", f"{self.f.models}/") as server:
                    if depth:
                        server.slot("restore", self.past_file(depth, pages))
                    speed(server, self.ids, self.theirs("llama-server " + pages), self.past(depth), PROMPT, STEPS)

    def reuse(self, scenario: str, play, *more) -> None:
        self.ours(scenario)
        if self.f.llama_server:
            with self.server(2048, "f16", *more) as server:
                play(server, self.ids, self.theirs("llama-server f16"))

    def chat(self) -> None:
        self.reuse("chat", chat)

    def shared(self) -> None:
        self.reuse("shared_system", shared_system)

    def documents(self) -> None:
        self.reuse("documents", permuted_documents)

    def zero(self) -> None:
        for _ in range(3):
            self.ours("zero_reuse")

    def quant(self) -> None:
        """200 tokens one after the other: so it runs a prompt, too."""
        command = [self.f.quant, self.paths["gguf-" + self.dtype], "-j", self.threads, "-q", "none", "--bench-prefill"]
        with subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as process:
            for line in process.stderr:
                if line.startswith("PREFILL_CSV:fp32"):
                    self.theirs("quant")("token_after_token", float(line.split(",")[2]))
                    break
            process.kill()

    def agree(self) -> None:
        """F32 throughout, because llama.cpp rounds what it multiplies with BF16 weights."""
        prompts = [self.ids(count) for count in (3, 40, 300)]
        with self.server(1024, "f32") as server:
            said = [server.complete(prompt, STEPS)["tokens"] for prompt in prompts]
        for prompt, tokens in zip(prompts, said):
            text = run([self.f.program, "--model", self.paths["hf-" + self.dtype], "--threads", self.threads,
                        "--steps", STEPS, "--ids", ",".join(map(str, prompt))])
            equal = [mine == theirs for mine, theirs in zip(map(int, text.split()), tokens)]
            print(f"{self.dtype}, prompt of {len(prompt)}: the first {(equal + [False]).index(False)} of {STEPS} tokens agree")


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(word) for word in text.split(",")]
    parse.add_argument("parts", nargs="*", metavar="PART", help="all that the given programs can run, if none is named")
    parse.add_argument("--program", type=Path, help="our bench program `model`")
    parse.add_argument("--llama-bench", type=Path)
    parse.add_argument("--llama-server", type=Path)
    parse.add_argument("--quant", type=Path)
    parse.add_argument("--llama-arguments", default="", help="more settings for llama-bench, in one word")
    parse.add_argument("--models", type=Path, default=Path("build/compare"), help="where the weights are written")
    parse.add_argument("--shape", choices=weights.SHAPES, default="smollm2-135m")
    parse.add_argument("--gguf", type=Path, help="a model file that replaces the random weights")
    parse.add_argument("--dtypes", help="weights: f32, bf16, q8_0 (f32,bf16); of a GGUF file: blocks, blocks-int8 (both). Ours for q8_0 are int8, made from f32")
    parse.add_argument("--threads", type=numbers, default=[1, 2])
    parse.add_argument("--depths", type=numbers, default=[0, 2048, 8192])
    parse.add_argument("--pages", type=lambda text: text.split(","), default=["f16", "f32"], help="of llama-server")
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--prepare", action="store_true", help="only writes weights and pasts")
    parse.add_argument("--state", type=Path, default=Path("build/compare/state.json"), help="keeps the samples")
    parse.add_argument("--report", action="store_true", help="only prints what the state holds")
    parse.add_argument("--markdown", action="store_true", help="prints it as Markdown tables")
    f = parse.parse_args()
    if unknown := set(f.parts) - set(PARTS):
        parse.error(f"there is no part {', '.join(sorted(unknown))}")
    state, dtypes = State(f.state), (f.dtypes or ("blocks,blocks-int8" if f.gguf else "f32,bf16")).split(",")
    f.python_peer = bool(f.gguf and not f.llama_bench and not f.llama_server and importlib.util.find_spec("llama_cpp"))
    if not f.report:
        paths = ({f"{kind}-{dtype}": f.gguf for kind in ("hf", "gguf") for dtype in dtypes} if f.gguf
                 else weights.write_all(f.models, f.shape, dtypes))
        given = {"speed": f.llama_bench or f.python_peer, "served": f.llama_server, "chat": f.llama_server, "shared": f.llama_server,
                 "documents": f.llama_server, "zero": f.program, "quant": f.quant, "agree": f.program and f.llama_server}
        parts = f.parts or [part for part in PARTS if given[part]]
        for round_ in range(f.rounds):
            for dtype in dtypes:
                for threads in f.threads:
                    turn = Turn(f, state, paths, dtype, threads)
                    if f.llama_server and (f.prepare or "served" in parts):
                        turn.prepare()
                    if f.prepare:
                        continue
                    for part in parts:
                        if part != "agree" or (round_ == 0 and dtype != "q8_0"):
                            getattr(turn, part)()
                        state.save()
    if not f.prepare:
        tables.show(state, f)


if __name__ == "__main__":
    main()
