#!/usr/bin/env python3
"""Objects that are built differently neither share nor replace each other's functions.

    mixed.py COMPILER FOLDER [COMPILE OPTIONS...]    FOLDER is where it works

Without optimisation, so that no function is inlined: two objects with and without contract checks, linked in both
orders, keep their behaviour; objects for two instruction sets have no function of the library in common. An object that
includes all of the library and calls nothing has no function of it.
"""
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
compiler, work, options = sys.argv[1], Path(sys.argv[2]), " ".join(sys.argv[3:]).split()
work.mkdir(parents=True, exist_ok=True)


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def compiled(name: str, source: str, *flags: str) -> Path:
    made = work / f"{name}.o"
    run(compiler, "-std=c++20", *options, "-O0", *flags, "-c", HERE / source, "-o", made)
    return made


def functions(made: Path) -> set[str]:
    """Those of the library that another object may replace."""
    return {name for kind, name in re.findall(r" ([WVu]) (\S+)$", run("nm", made), re.M) if "kvcache" in name}


def apart(one: Path, other: Path) -> None:
    mine, theirs = functions(one), functions(other)
    if not mine or not theirs:
        sys.exit(f"{one} or {other} has no function of the library")
    if shared := mine & theirs:
        sys.exit(f"{one} and {other} share {len(shared)} functions: {sorted(shared)[:5]}")
    print(f"{one.name} and {other.name}: {len(mine)} and {len(theirs)} functions, none shared")


lanes = 16 if "avx512" in Path("/proc/cpuinfo").read_text() else 8
level = "x86-64-v4" if lanes == 16 else "x86-64-v3"
unchecked = compiled("unchecked", "part.cpp", "-DPART=unchecked", "-DKVCACHE_CONTRACTS=0", f"-march={level}")
checked = compiled("checked", "part.cpp", "-DPART=checked", "-DKVCACHE_CONTRACTS=1", "-march=x86-64-v3")
main = compiled("main", "main.cpp", f"-DLANES={lanes}")
apart(unchecked, checked)
for order in ([unchecked, checked], [checked, unchecked]):
    run(compiler, main, *order, "-pthread", "-o", work / "program")
    run(work / "program")
wide = compiled("wide", "part.cpp", "-DPART=wide", "-DKVCACHE_CONTRACTS=1", "-march=x86-64-v4")
apart(wide, checked)
idle = work / "idle.cpp"
idle.write_text("#include <kvcache/kvcache.hpp>\nint main() {}\n")
run(compiler, "-std=c++20", *options, "-O2", "-march=x86-64-v3", "-c", idle, "-o", work / "idle.o")
if left := functions(work / "idle.o"):
    sys.exit(f"including kvcache.hpp leaves {len(left)} functions: {sorted(left)[:5]}")
print("both orders keep each object's behaviour")
