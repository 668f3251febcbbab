#!/usr/bin/env python3
"""Which small mistakes in the cache its tests would notice: changes one operator of include/kvcache/cache/ at a time.

    tools/mutants.py [--count 100] [--seed 1] [--only sequence_manager] [--list] [--jobs 2] [--json mutants.json]

The mutants are drawn evenly over the files. Each is compiled with tests/cache/, one test file after the other, until
one does not pass: then it is killed. The files are compiled without optimisation, with contract checks, so a violated
contract kills too. Mutants that do not compile are drawn again. A line for each mutant, and the number that was killed.
A hundred take about an hour and a half on two cores.
"""
import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

HOME = Path(__file__).resolve().parent.parent
CACHE = HOME / "include" / "kvcache" / "cache"
# Those that check most first. They need no more of tests/ than they include.
TESTS = ["basic_cache", "acquired", "host_mistakes", "tenant_cache", "every_policy", "page_manager", "page_eviction",
         "lease", "sequence", "reserve_all", "match", "invariant_checker", "tier_client", "tier_records",
         "residual", "quantized_memory", "interleavings", "any_cache", "compose", "prefill_cost", "page_pool", "token_buffer",
         "row_run", "sequence_state", "cache_identity", "tenant_index", "threads", "any_policy", "../observer/metrics",
         "no_allocation", "../storage/external"]
FLAGS = ["-std=c++20", "-O0", "-march=native", "-DKVCACHE_CONTRACTS=1"]
# Code alone is changed: what is between these is left out.
HIDDEN = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|^[ \t]*#[^\n]*|static_assert\((?:[^()]|\([^()]*\))*\)|'
                    r"template <[^\n]*>$|concept [^;]*;|requires[^\n;]*", re.M)
CHANGES = [(r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "),
           (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "), (r"\+\+", "--"), (r"--(?=\w)", "++"),
           (r"(?<=return )true\b", "false"), (r"(?<=return )false\b", "true"), (r"std::min(?=[(<])", "std::max"),
           (r"std::max(?=[(<])", "std::min"), (r" \+= ", " -= "), (r" -= ", " += "), (r"(?<=[ (])!(?=\w)", ""),
           (r"(?m)^ {8,}[a-z_]+(?:\.|->)[a-z_]+\([^;{}\n]*\);$", ";"), (r"(?m)^ {8,}[a-z_]+\([^;{}\n]*\);$", ";")]


def mutants_of(path: Path) -> list[dict]:
    """Every place of a file that can be changed, with its line and the file's text after the change."""
    text = path.read_text()
    shown = HIDDEN.sub(lambda found: re.sub(r"[^\n]", "\0", found[0]), text)
    made = []
    for what, to in CHANGES:
        for at in re.finditer(what, shown):
            if "noexcept" in shown[max(0, at.start() - 12):at.start()]:
                continue
            line = text.count("\n", 0, at.start()) + 1
            made.append({"file": path.name, "line": line, "from": text[at.start():at.end()].strip(), "to": to.strip(),
                         "text": text[:at.start()] + to + text[at.end():]})
    return made


def run(command: list, seconds: int) -> bool:
    try:
        return subprocess.run([str(word) for word in command], capture_output=True, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


class laboratory:
    """Compiles tests with a changed header in front of the real ones, and runs them."""

    def __init__(self, compiler: str, scratch: Path):
        self.compiler, self.scratch = compiler, scratch
        self.over = scratch / "include" / "kvcache" / "cache"
        self.over.mkdir(parents=True)
        libraries = subprocess.run(["pkg-config", "--cflags", "eigen3", "libxxhash"], capture_output=True, text=True)
        self.includes = [f"-I{scratch / 'include'}", f"-I{HOME / 'include'}", f"-I{HOME / 'tests'}",
                         *libraries.stdout.split()]
        self.main = scratch / "main.o"
        if not run([compiler, *FLAGS, "-c", HOME / "tests" / "main.cpp", "-o", self.main], 600):
            sys.exit("mutants: tests/main.cpp does not compile")

    def build(self, test: str) -> Path | None:
        program = self.scratch / "test"
        source = HOME / "tests" / "cache" / f"{test}.test.cpp"
        built = run([self.compiler, *FLAGS, *self.includes, source, self.main, "-o", program, "-lxxhash", "-pthread"], 900)
        return program if built else None

    def fails(self, test: str) -> bool:
        """Whether a test does not pass without a change."""
        program = self.build(test)
        return program is None or not run([program], 300)

    def judge(self, mutant: dict) -> str:
        """ "killed by TEST", "lives", or "invalid" if it does not compile."""
        changed = self.over / mutant["file"]
        changed.write_text(mutant["text"])
        try:
            for test in sorted(TESTS, key=lambda name: changed.stem not in name):
                program = self.build(test)
                if program is None:
                    return "invalid"
                if not run([program], 120):
                    return f"killed by {test}"
            return "lives"
        finally:
            changed.unlink()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", default="", help="files with this word in their name")
    options.add_argument("--compiler", default="clang++")
    options.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    options.add_argument("--list", action="store_true", help="show the mutants alone")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    dice = random.Random(given.seed)
    files = [mutants_of(path) for path in sorted(CACHE.glob("*.hpp")) if given.only in path.stem]
    for each in files:
        dice.shuffle(each)
    order = [mutant for row in range(max(map(len, files), default=0)) for each in files for mutant in each[row:row + 1]]
    if given.list:
        print(*(f"{mutant['file']}:{mutant['line']}: {mutant['from']} -> {mutant['to']}" for mutant in order), sep="\n")
        return
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(given.jobs) as workers:
        labs: SimpleQueue = SimpleQueue()
        for number in range(given.jobs):
            labs.put(laboratory(given.compiler, Path(scratch) / str(number)))

        def borrowed(use):
            lab = labs.get()
            try:
                return use(lab)
            finally:
                labs.put(lab)

        if bad := [test for test, fails in zip(TESTS, workers.map(lambda t: borrowed(lambda lab: lab.fails(t)), TESTS))
                   if fails]:
            sys.exit(f"mutants: tests do not pass as they are: {' '.join(bad)}")
        left = iter(order)
        while len(rows) < given.count and (batch := list(islice(left, given.count - len(rows)))):
            fates = workers.map(lambda mutant: borrowed(lambda lab: lab.judge(mutant)), batch)
            for mutant, fate in zip(batch, fates):
                if fate == "invalid":
                    continue
                rows.append({key: mutant[key] for key in ("file", "line", "from", "to")} | {"fate": fate})
                print(f"{mutant['file']}:{mutant['line']}: {mutant['from']} -> {mutant['to']}: {fate}", flush=True)
                if given.json:
                    given.json.write_text(json.dumps(rows, indent=1) + "\n")
    killed = sum(row["fate"].startswith("killed") for row in rows)
    print(f"mutants: {killed} of {len(rows)} killed")


if __name__ == "__main__":
    main()
