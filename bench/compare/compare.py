#!/usr/bin/env python3
"""kvcache beside its peers: the same random weights, in turn, on the same machine.

Each part runs alone (--part), so that a shared machine can be had for one part at a time; --state keeps what was
measured, and --report prints the tables of all that it holds.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import weights

PROMPT, STEPS = 512, 32


def run(command: list, limit: float = 900.0) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-400:]}")
    return done.stdout


class State:
    """Samples by name, kept in a file so that rounds may run one at a time."""

    def __init__(self, file: Path | None):
        self.file = file
        self.samples = json.loads(file.read_text()) if file and file.exists() else {}

    def add(self, name: str, *values: float) -> None:
        self.samples.setdefault(name, []).extend(values)

    def save(self) -> None:
        if self.file:
            part = self.file.with_suffix(".part")
            part.write_text(json.dumps(self.samples, indent=1, sort_keys=True) + "\n")
            part.rename(self.file)

    def median(self, name: str) -> float | None:
        return statistics.median(self.samples[name]) if self.samples.get(name) else None


def ours(state: State, program: Path, model: Path, dtype: str, threads: str, depths: str, only: str) -> None:
    """One round of our program; its rows go to the state as ours/DTYPE/NAME/tTHREADS and .../limit."""
    with tempfile.NamedTemporaryFile(suffix=".json") as rows:
        run([program, "--model", model, "--threads", threads, "--depths", depths, "--only", only, "--rounds", 1,
             "--steps", STEPS, "--json", rows.name])
        for row in json.loads(Path(rows.name).read_text()):
            name = f"ours/{dtype}/{row['name']}/t{row['threads']}"
            state.add(name, row["value"])
            if row["limit"]:
                state.add(name + "/limit", row["limit"])


def llama(state: State, program: Path, model: Path, dtype: str, threads: str, depths: str, pages: str, more: list,
          repetitions: int) -> None:
    """llama-bench at its best settings; samples go to the state as llama/DTYPE-PAGES/NAME/tTHREADS. A depth at a time
    and most threads first: it reaches the depth once, and keeps it for the tests that follow."""
    most_first = ",".join(sorted(threads.split(","), key=int, reverse=True))
    for depth in depths.split(","):
        text = run([program, "-m", model, "-t", most_first, "-d", depth, "-p", PROMPT, "-n", STEPS, "-fa", 1,
                    "-ctk", pages, "-ctv", pages, "-r", repetitions, "-o", "json", *more])
        for test in json.loads(text):
            name = f"prefill_{PROMPT}" if test["n_prompt"] else "generation"
            state.add(f"llama/{dtype}-{pages}/{name}_d{test['n_depth']}/t{test['n_threads']}", *test["samples_ts"])


def speed_table(state: State, threads: str, depths: str) -> None:
    """Ratios of medians, ours over llama.cpp's."""
    pairs = (("f32", "f32"), ("bf16", "bf16"), ("int8", "q8_0"))
    print(f"{'tokens a second':24} {'weights':8} threads {'ours':>8} {'limit':>8} {'share':>6} "
          f"{'llama f16':>10} {'ratio':>6} {'llama f32':>10} {'ratio':>6}")
    for mine, theirs in pairs:
        for test in (f"prefill_{PROMPT}", "generation"):
            for depth in depths.split(","):
                for t in threads.split(","):
                    name = f"{test}_d{depth}/t{t}"
                    value, limit = state.median(f"ours/{mine}/{name}"), state.median(f"ours/{mine}/{name}/limit")
                    others = [state.median(f"llama/{theirs}-{pages}/{name}") for pages in ("f16", "f32")]
                    if value is None and not any(others):
                        continue
                    cells = [f"{value:8.1f}" if value else f"{'-':>8}", f"{limit:8.1f}" if limit else f"{'-':>8}",
                             f"{100 * value / limit:5.0f}%" if value and limit else f"{'-':>6}"]
                    for other in others:
                        cells.append(f"{other:10.1f}" if other else f"{'-':>10}")
                        cells.append(f"{value / other:6.2f}" if value and other else f"{'-':>6}")
                    print(f"{test + ' at ' + depth:24} {mine:8} {t:>7} " + " ".join(cells))


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--program", type=Path, help="our bench program `model`")
    parse.add_argument("--llama-bench", type=Path)
    parse.add_argument("--llama-arguments", default="", help="more settings for llama-bench, in one word")
    parse.add_argument("--models", type=Path, default=Path("build/compare"), help="where the weights are written")
    parse.add_argument("--shape", choices=weights.SHAPES, default="smollm2-135m")
    parse.add_argument("--dtypes", default="f32,bf16")
    parse.add_argument("--threads", default="1,2")
    parse.add_argument("--depths", default="0,2048,8192")
    parse.add_argument("--pages", default="f16", help="llama.cpp's types of keys and values; llama-bench knows no f32")
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--repetitions", type=int, default=2, help="of llama-bench, each round")
    parse.add_argument("--part", choices=["speed"], action="append", default=None)
    parse.add_argument("--state", type=Path, help="keeps the samples; rounds add to it")
    parse.add_argument("--report", action="store_true", help="only prints what the state holds")
    f = parse.parse_args()
    state = State(f.state)
    if not f.report:
        paths = weights.write_all(f.models, f.shape, f.dtypes.split(","))
        for _ in range(f.rounds):
            for dtype in f.dtypes.split(","):
                if f.program and "hf-" + dtype in paths:
                    ours(state, f.program, paths["hf-" + dtype], dtype, f.threads, f.depths, "prefill,generation")
                if f.llama_bench:
                    for pages in f.pages.split(","):
                        llama(state, f.llama_bench, paths["gguf-" + dtype], dtype, f.threads, f.depths, pages,
                              f.llama_arguments.split(), f.repetitions)
                state.save()
    speed_table(state, f.threads, f.depths)


if __name__ == "__main__":
    main()
