#!/usr/bin/env python3
"""Builds and runs the tests of the cache on other systems and standard libraries.

    platforms.py [--list] [--sanitized] [--build DIRECTORY] [--results DIRECTORY] [NAME...]

Without names: all of them. A platform whose compiler or runner is missing is skipped, and said so. For each platform a
line with the tests that passed, and what they print if they fail. Exits with 1 if anything fails.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parent.parent
EMSCRIPTEN = Path("/usr/share/emscripten/cmake/Modules/Platform/Emscripten.cmake")
LIBCXX_19 = HOME / "build" / "libc++-19" / "usr" / "lib" / "llvm-19"  # unpacked there by ./dev check --long
# Their libraries, OpenSSL, zlib and LMDB, are those of this machine; the second test reads a program's heap from glibc. An
# engine's attention is not the cache's, and takes minutes without optimisation.
EVERYWHERE = ["hash/sha256", "eviction/published_counts", "layers/owned_reuse", "layers/hybrid_reuse"]
NO_MAPPINGS = ["core/address_range", "storage/mapped", "storage/huge_pages", "cache/quantized_memory"]

FOLDERS = "core;index;eviction;hash;storage;codec;record;layers;cache"
# The same everywhere: interleavings at a lock, and a hit rate. `./dev test` runs them on this machine.
ALIKE = ["~in every order*", "~on conversations learned_reuse*"]
# Long without optimisation.
LONG = ["~where nothing is evicted a match is the longest*", "~prompts whose names collide*", "~row-major pages of any number of tokens*"]


@dataclass
class Platform:
    title: str
    compiler: str
    flags: str  # -O0 where compiling takes longer than running
    launcher: list[str] = field(default_factory=list)
    prepare: list[str] = field(default_factory=list)  # what runs once before the programs, several of which start together
    without: list[str] = field(default_factory=list)  # test files
    skipped: list[str] = field(default_factory=list)  # tests by name, in the words of Catch2
    folders: str = FOLDERS  # of tests/
    cmake: list[str] = field(default_factory=list)
    linker: str = ""  # how a program is linked, where Clang and lld are installed; empty: by the compiler
    seldom: bool = False  # in `./dev check --long` only


PLATFORMS = {
    "windows": Platform(
        "Windows, Clang 19, MinGW-w64 and Wine", "clang++-19",
        "--target=x86_64-w64-mingw32 -O0 -march=x86-64-v3 -fuse-ld=lld-19 -static -Wno-unused-command-line-argument "
        "-Wno-deprecated-declarations",  # those of GCC's own library
        ["wine"], ["wine", "wineboot", "--init"], NO_MAPPINGS, ALIKE + LONG,
        cmake=["-DCMAKE_SYSTEM_NAME=Windows", "-DCMAKE_CXX_STANDARD_LIBRARIES=-lwinpthread"]),
    "x86": Platform(
        "Linux, 32-bit x86", "g++",
        "-O1 -m32 -march=haswell -mfpmath=sse -Wno-narrowing -Wno-maybe-uninitialized "  # the latter as in tests/CMakeLists.txt
        "-idirafter /usr/include/x86_64-linux-gnu",
        skipped=ALIKE),
    # Without --long, `./dev check` leaves these folders out.
    "libc++": Platform(
        "Linux, Clang 19, libc++ 14, sanitizers", "clang++-19",
        "-O1 -march=native -stdlib=libc++ -fsanitize=address,undefined -fno-sanitize-recover=all -Wno-unused-command-line-argument",
        skipped=ALIKE),
    "wasm": Platform(
        "WebAssembly, Emscripten 3 and Node", "em++", "-O1 -fexceptions -Wno-unused-command-line-argument -Wno-c++11-narrowing",
        ["node", "--no-experimental-fetch"], [],
        # No threads; no kernels, which codecs of whole pages need.
        NO_MAPPINGS + ["cache/interleavings", "cache/threads", "cache/any_cache", "cache/any_policy", "cache/residual",
                       "cache/tier_client"],
        ["~*threads*", "~of prompts that arrive together*"], "core;index;eviction;hash;storage;record;cache",
        [f"-DCMAKE_TOOLCHAIN_FILE={EMSCRIPTEN}",
         "-DCMAKE_EXE_LINKER_FLAGS=-sALLOW_MEMORY_GROWTH -sNODERAWFS -sENVIRONMENT=node -sEXIT_RUNTIME -sTOTAL_STACK=4194304"],
        seldom=True),
    "windows-gcc": Platform(
        "Windows, GCC 12 of MinGW-w64, Wine", "x86_64-w64-mingw32-g++-posix", "-O0 -march=x86-64-v3 -Wa,-mbig-obj", ["wine"],
        ["wine", "wineboot", "--init"], NO_MAPPINGS,
        ALIKE + LONG,
        cmake=["-DCMAKE_SYSTEM_NAME=Windows", "-DCMAKE_EXE_LINKER_FLAGS=-static",
               "-DKVCACHE_JOINED=3"],  # an object has at most 10 MB of section names
        # GNU's linker takes a minute for each program, LLVM's less than a second. GCC for Windows cannot be told to call it.
        linker="clang++-19 --target=x86_64-w64-mingw32 -fuse-ld=lld-19 -static -L{compiler} -L/usr/x86_64-w64-mingw32/lib "
               "<OBJECTS> -lwinpthread -o <TARGET>",
        seldom=True),
    "clang": Platform(
        "Linux, Clang 19", "clang++-19", "-O0 -march=native -Wno-deprecated-declarations",  # those of GCC's own library
        seldom=True),
    "libc++-19": Platform(
        "Linux, Clang 19, libc++ 19", "clang++-19",
        f"-O1 -march=native -nostdinc++ -isystem {LIBCXX_19}/include/c++/v1 -stdlib=libc++ -L{LIBCXX_19}/lib -Wl,-rpath,{LIBCXX_19}/lib "
        "-Wno-unused-command-line-argument",
        seldom=True),
}


def missing(platform: Platform, scratch: Path) -> str:
    """What this machine has not, or nothing. A library is missing where an empty program does not link."""
    for program in [platform.compiler, *platform.launcher[:1]]:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if platform.compiler == "em++":
        return "" if EMSCRIPTEN.exists() else f"{EMSCRIPTEN} does not exist"
    done = subprocess.run([platform.compiler, "-std=c++20", *platform.flags.split(), "-x", "c++", "-", "-o", scratch / "empty"],
                          input="#include <cerrno>\n#include <vector>\nint main() {}\n", capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{platform.compiler} has no library for {platform.flags}"


def run(name: str, platform: Platform, build: Path, results: Path | None) -> bool:
    own = build / name.replace("+", "x")
    own.mkdir(parents=True, exist_ok=True)
    if why := missing(platform, own):
        print(f"SKIPPED: {platform.title}: {why}", flush=True)
        return True
    log = own / "log.txt"
    environment = os.environ | {"WINEDEBUG": "-all", "WINEPREFIX": str(own / "wine"), "ASAN_OPTIONS": "detect_leaks=0"}
    jobs = str(os.cpu_count() or 2)
    definitions = {
        "CMAKE_CXX_FLAGS": f"-g0 {platform.flags}",
        "KVCACHE_FOLDERS": platform.folders,
        "KVCACHE_LAUNCHER": ";".join(platform.launcher),
        "KVCACHE_WITHOUT": ";".join(EVERYWHERE + platform.without),
        "KVCACHE_FILTER": ";".join(platform.skipped),
    }
    if "-DCMAKE_TOOLCHAIN_FILE" not in " ".join(platform.cmake):
        definitions["CMAKE_CXX_COMPILER"] = platform.compiler
    if shutil.which("ccache"):
        definitions["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    if platform.linker and all(shutil.which(program) for program in ("clang++-19", "ld.lld-19")):
        library = subprocess.run([platform.compiler, "-print-libgcc-file-name"], capture_output=True, text=True, check=True).stdout
        definitions["KVCACHE_LINKER"] = platform.linker.format(compiler=Path(library.strip()).parent)
    junit = ["--output-junit", str(results / f"platform-{name}.xml")] if results else []
    began = time.monotonic()
    with log.open("w") as out:
        for step in (["cmake", "-S", HERE, "-B", own, "-G", "Ninja", *[f"-D{key}={value}" for key, value in definitions.items()],
                      *platform.cmake],
                     ["cmake", "--build", own, "-j", jobs, "--", "-k", "0"], *([platform.prepare] if platform.prepare else []),
                     ["ctest", "--test-dir", own, "-j", jobs, "--output-on-failure", *junit]):
            if subprocess.run(step, stdout=out, stderr=subprocess.STDOUT, env=environment, stdin=subprocess.DEVNULL).returncode:
                out.flush()
                print(f"{platform.title}: FAILED\n" + "\n".join(log.read_text(errors="replace").splitlines()[-60:]), flush=True)
                return False
    last = next(line for line in reversed(log.read_text(errors="replace").splitlines()) if "tests passed" in line)
    print(f"{platform.title}: {last} in {time.monotonic() - began:.0f} s", flush=True)
    return True


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("names", nargs="*", metavar="NAME")
    asked.add_argument("--list", action="store_true", help="name the platforms")
    asked.add_argument("--sanitized", action="store_true", help="name the folders of tests/ that run with sanitizers here")
    asked.add_argument("--seldom", action="store_true", help="also those that take another machine's libraries")
    asked.add_argument("--build", type=Path, default=HOME / "build" / "platforms")
    asked.add_argument("--results", type=Path, help="write a report for each platform there")
    given = asked.parse_args()
    if unknown := set(given.names) - set(PLATFORMS):
        asked.error(f"there is no platform {', '.join(sorted(unknown))}; there are {', '.join(PLATFORMS)}")
    if given.list:
        print("\n".join(f"{name:10} {platform.title}" for name, platform in PLATFORMS.items()))
        return 0
    if given.sanitized:
        with tempfile.TemporaryDirectory() as scratch:
            print("" if missing(PLATFORMS["libc++"], Path(scratch)) else PLATFORMS["libc++"].folders)
        return 0
    if given.results:
        given.results = given.results.resolve()
        given.results.mkdir(parents=True, exist_ok=True)
    chosen = given.names or [name for name, platform in PLATFORMS.items() if given.seldom or not platform.seldom]
    return 0 if all([run(name, PLATFORMS[name], given.build.resolve(), given.results) for name in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
