#!/usr/bin/env python3
"""Programs in the README and in docs/ compile

Each fenced ```cpp block with a main() is written to build/snippets/ and compiled (syntax and types, no code); one that needs
llama.cpp only where `./dev test` has built it, or the system has it.
"""
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from repository import HOME, name_of  # noqa: E402

BLOCK = re.compile(r"^```cpp[^\n]*\n(.*?)^```", re.M | re.S)
OUTPUT = HOME / "build" / "snippets"


def extract() -> list[tuple[str, Path]]:
    """Writes each program to its file; gives where it comes from, and the file."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    found = []
    for page in [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))]:
        text = page.read_text() if page.exists() else ""
        for block in BLOCK.finditer(text):
            if not re.search(r"\bint main\(", block[1]):
                continue
            line = text.count("\n", 0, block.start()) + 2
            program = OUTPUT / f"{page.stem}_{line}.cpp"
            program.write_text(f'#line {line} "{name_of(page)}"\n{block[1]}')
            found.append((f"{name_of(page)}:{line}", program))
    return found


def check() -> list[str]:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        return ["no C++ compiler to try the snippets with"]
    command = [compiler, "-std=c++20", "-fsyntax-only", "-march=native", "-Wall", "-Wextra", f"-I{HOME / 'include'}",
               "-isystem", "/usr/include/eigen3"]

    llama = next(iter(sorted((HOME / "build" / "llama").glob("**/include/llama.h"))), None)
    if llama:
        command += ["-isystem", str(llama.parent)]

    def compile_one(snippet: tuple[str, Path]) -> list[str]:
        place, program = snippet
        if "adapters/llama.hpp" in program.read_text() and not llama and not Path("/usr/include/llama.h").exists():
            return []
        done = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return []
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        return [f"{place}: {line}" for line in errors[:3]] or [f"{place}: does not compile"]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [line for lines in pool.map(compile_one, extract()) for line in lines]


if __name__ == "__main__":
    problems = check()
    print("\n".join(problems) or "every program in the documents compiles")
    sys.exit(bool(problems))
