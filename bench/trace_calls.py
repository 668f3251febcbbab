#!/usr/bin/env python3
"""How many functions and files of include/kvcache a call of a host crosses, at -O0 and with accessors counted.

    trace_calls.py [--compiler g++] [--tree] [--files] [--only WORD] [--json ROWS.json] [HOST.cpp]

Compiles bench/support/trace_host.cpp, or HOST.cpp, with -finstrument-functions, runs it, and names the functions with
addr2line. A line for each trace of the host: calls; distinct functions; distinct files; how often a call is in another
file than the call before it; calls within each other, at most. Functions of the host and of other libraries are not
counted. --files lists the files with their calls, --tree prints every call, indented, with its file and line.
"""
import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
SUPPORT = HOME / "bench" / "support"
OURS = HOME / "include" / "kvcache"


def run(*words: str | Path, given: str | None = None) -> str:
    done = subprocess.run([str(word) for word in words], input=given, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"trace_calls: {words[0]} failed\n{done.stderr}")
    return done.stdout


def trace(compiler: str, host: Path, scratch: Path) -> tuple[str, Path]:
    """The events that the host printed, and the program, which has the names."""
    program, flags = scratch / "host", ["-std=c++20", "-O0", "-g1", "-DKVCACHE_CONTRACTS=0", f"-I{HOME / 'include'}"]
    run(compiler, *flags, "-c", SUPPORT / "call_tracer.cpp", "-o", scratch / "tracer.o")
    run(compiler, *flags, "-finstrument-functions", "-finstrument-functions-exclude-file-list=/usr/", "-no-pie", host,
        scratch / "tracer.o", "-o", program)
    return run(program), program


def names(program: Path, addresses: list[str]) -> dict[str, tuple[str, str, int]]:
    """The function, its file below include/kvcache ("" for any other) and its line, by address."""
    lines = run("addr2line", "-f", "-C", "-e", program, given="\n".join(addresses)).splitlines()
    named = {}
    for address, function, place in zip(addresses, lines[::2], lines[1::2]):
        file, _, line = re.sub(r" \(discriminator \d+\)$", "", place).rpartition(":")
        path = Path(file).resolve()
        ours = path.relative_to(OURS).as_posix() if path.is_relative_to(OURS) else ""
        named[address] = function, ours, int(line) if line.isdigit() else 0
    return named


def short(function: str) -> str:
    """A function's name without namespaces of versions, template arguments and parameters, which fill pages."""
    within = "::lambda" if "{lambda(" in function else ""
    while (bare := re.sub(r"(?<!operator)<[^<>]*>", "", function)) != function:
        function = bare
    return re.sub(r"kvcache::(v\d\w*::)?", "", function.partition("(")[0]).split(" ")[-1] + within


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `trace_calls.py --tree | head` ends quietly
    options = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    options.add_argument("host", type=Path, nargs="?", default=SUPPORT / "trace_host.cpp")
    options.add_argument("--compiler", default="g++")
    options.add_argument("--tree", action="store_true")
    options.add_argument("--files", action="store_true")
    options.add_argument("--only", default="", help="traces with this word in their name")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        printed, program = trace(given.compiler, given.host, Path(scratch))
        events = [line.partition(" ")[::2] for line in printed.splitlines()]
        named = names(program, sorted({value for kind, value in events if kind == "enter"}))
    traces: dict[str, list[tuple[int, str, str, int]]] = {}  # depth, function, file, line
    calls, stack = [], []
    for kind, value in events:
        if kind == "name":
            calls, stack = traces.setdefault(value, []), []
        elif kind == "leave":
            if stack:
                stack.pop()
        else:
            function, file, line = named[value]
            stack.append(bool(file))
            if file:
                calls.append((sum(stack), function, file, line))
    rows = []
    print(f"{'':28} {'calls':>6} {'functions':>9} {'files':>6} {'changes of file':>16} {'depth':>6}")
    for name, calls in traces.items():
        if given.only not in name:
            continue
        files = [file for _, _, file, _ in calls]
        rows.append({"trace": name, "calls": len(calls), "functions": len({call[1] for call in calls}),
                     "files": len(set(files)), "changes": sum(a != b for a, b in zip(files, files[1:])),
                     "depth": max((depth for depth, *_ in calls), default=0)})
        row = rows[-1]
        print(f"{name:28} {row['calls']:6} {row['functions']:9} {row['files']:6} {row['changes']:16} {row['depth']:6}")
        if given.files:
            for file, times in Counter(files).most_common():
                print(f"    {times:5}  {file}")
        if given.tree:
            for depth, function, file, line in calls:
                print(f"    {'  ' * (depth - 1)}{short(function)}  {file}:{line}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
