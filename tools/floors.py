#!/usr/bin/env python3
"""Includes point down the floors, without circles

A folder may include itself and any folder on a lower floor; folders on one floor do not know each other. Between
folders a circle is thus impossible; inside a folder it is looked for. Bodies of X.hpp may lie in impl/X.hpp beside it:
the two include each other, and no other header includes the second. Also: who may name a dependency, and that the
component a header belongs to does not reach into a component above it.
"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from house import HOME, INCLUDE, headers  # noqa: E402

FLOORS = [  # from the ground up
    ("core",),
    ("cuda", "kernel"),
    ("codec", "storage", "hash", "index", "eviction", "recompute", "observer", "locking", "record"),
    ("attention", "tier"),
    ("cache",),
    ("model", "text"),
    ("session", "device"),
    ("adapters", "testing"),
]
FLOOR = {folder: level for level, folders in enumerate(FLOORS) for folder in folders}

DEPENDENCIES = {  # what an include opens with: the headers or folders that may name it
    "Eigen/": ("core/tensor.hpp",),
    "xsimd/": ("kernel/native.hpp",),
    "nlohmann/": ("core/json.hpp",),
    "pcre2.h": ("text/regex.hpp",),
    "utf8proc.h": ("text/unicode.hpp",),
    "openssl/": ("hash/sha256.hpp", "tier/redis_tls.hpp"),
    "xxhash.h": ("hash/", "core/"),  # one header, whichever it is
    "cxxabi.h": ("core/type_name.hpp",),
    "immintrin.h": ("core/intrinsics.hpp",),
    "emmintrin.h": ("core/intrinsics.hpp",),
    "arm_neon.h": ("core/intrinsics.hpp",),
    "cuda": ("cuda/",),
    "zlib.h": ("adapters/traces/gzip_decoder.hpp",),
    "zstd.h": ("adapters/traces/zstd_decoder.hpp", "kernel/zstd_code.hpp"),
    "lmdb.h": ("tier/",),
}
SYSTEM = {"fcntl.h", "unistd.h", "sys/mman.h", "sys/stat.h", "sys/types.h", "sys/file.h", "sys/socket.h", "poll.h",
          "netdb.h", "netinet/in.h", "netinet/tcp.h"}
ANY = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.M)


def body_of(name: str) -> str:
    """Where the bodies of a header lie, if they lie apart."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/impl/{last}"


def bodies(graph: dict[str, list[str]]) -> list[str]:
    return [f"{name}: includes {target}, which belongs to another header"
            for name, targets in graph.items() for target in targets
            if "/impl/" in target and target != body_of(name)]


def circles(graph: dict[str, list[str]]) -> list[str]:
    found: list[str] = []
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if state.get(name) == 2 or name not in graph:
            return
        if state.get(name) == 1:
            found.append("circle: " + " -> ".join(trail[trail.index(name):] + (name,)))
            return
        state[name] = 1
        for target in graph[name]:
            if target != body_of(name):
                visit(target, trail + (name,))
        state[name] = 2

    for name in graph:
        visit(name, ())
    return found


def floors(graph: dict[str, list[str]]) -> list[str]:
    wrong = []
    for name, targets in graph.items():
        folder, _, rest = name.partition("/")
        if not rest:  # kvcache.hpp stands at the door and sees everything, except what a host without a device lacks
            wrong += [f"{name}: includes {target}; cuda/ and device/ are a target of their own"
                      for target in targets if target.startswith(("cuda/", "device/"))]
            continue
        if folder not in FLOOR:
            wrong.append(f"{name}: the folder {folder}/ has no floor in tools/floors.py")
            continue
        for target in targets:
            other = target.partition("/")[0]
            if target not in graph:
                wrong.append(f"{name}: includes {target}, which does not exist")
            elif other != folder and (other not in FLOOR or FLOOR[other] >= FLOOR[folder]):
                wrong.append(f"{name}: includes {target}, which is not below {folder}/")
            elif folder == "cuda" and other not in ("cuda", "core"):
                wrong.append(f"{name}: includes {target}; cuda/ sees only core/")
    return wrong


def dependencies(outside: dict[str, list[str]]) -> list[str]:
    wrong, xxhash = [], []
    for name, includes in outside.items():
        for include in includes:
            if include == "xxhash.h":
                xxhash.append(name)
            allowed = next((where for what, where in DEPENDENCIES.items() if include.startswith(what)), None)
            if allowed is None:
                if not re.fullmatch(r"[a-z_0-9]+", include) and include not in SYSTEM:
                    wrong.append(f"{name}: names <{include}>, a dependency that tools/floors.py does not know")
            elif not any(name == place or (place.endswith("/") and name.startswith(place)) for place in allowed):
                wrong.append(f"{name}: names <{include}>; only {', '.join(allowed)} may")
    if len(xxhash) > 1:
        wrong.append("xxhash.h is named by " + ", ".join(xxhash) + "; only one header may")
    return wrong


REACH = {"core": (), "json": (), "text": ("json",), "traces": ("json",), "crypto": (), "compress": (), "lmdb": (), "redis": (),
         "cuda": ()}  # besides itself and core


def components(graph: dict[str, list[str]]) -> list[str]:
    """A header reaches only into the components that its own is built on."""
    cmake = (HOME / "CMakeLists.txt").read_text()
    patterns = {kind: re.compile(text.replace("\\\\", "\\"))
                for kind, text in re.findall(r'set\(kvcache_(\w+)_pattern "([^"]*)"\)', cmake)}
    of = {name: next((kind for kind, pattern in patterns.items() if pattern.search("kvcache/" + name)), "core")
          for name in graph}
    return [f"{name}: is of the component {of[name]} but includes {target}, of {of[target]} "
            "(the patterns are in CMakeLists.txt)"
            for name, targets in graph.items() for target in targets
            if target in of and of[target] not in ("core", of[name], *REACH[of[name]])]


def check() -> list[str]:
    graph: dict[str, list[str]] = {}
    outside: dict[str, list[str]] = {}
    for path in headers():
        name = path.relative_to(INCLUDE).as_posix()
        includes = ANY.findall(path.read_text())
        graph[name] = [include[len("kvcache/"):] for include in includes if include.startswith("kvcache/")]
        outside[name] = [include for include in includes if not include.startswith("kvcache/")]
    return floors(graph) + bodies(graph) + circles(graph) + dependencies(outside) + components(graph)


if __name__ == "__main__":
    problems = check()
    print("\n".join(problems) or f"{len(headers())} headers, every include points down")
    sys.exit(bool(problems))
