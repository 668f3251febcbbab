#!/usr/bin/env python3
"""Includes point to a lower layer, without circles

A folder may include itself and any folder in a lower layer; folders in one layer do not include each other. Between
folders a circle is thus impossible; inside a folder it is looked for. Bodies of X.hpp may lie in impl/X.hpp beside it:
the two include each other, no other header includes the second, and nothing that the second includes includes X.hpp.
Also: who may name a dependency, and that the component a header belongs to (cmake/components.cmake) does not reach into a component above it; and what
<kvcache/cache.hpp> may reach. cuda/ serves hosts that have their own cache and model: two of its headers see what is
below session/, the others see only core/.
"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from repository import HOME, INCLUDE, headers  # noqa: E402

LAYERS = [  # the lowest layer first
    ("core",),
    ("kernel", "formats"),
    ("codec", "storage", "hash", "index", "eviction", "recompute", "observer", "locking", "layers"),
    ("attention", "tier", "record"),
    ("cache",),
    ("model", "text", "chunk"),
    ("session", "cuda"),
    ("adapters", "testing"),
]
DEVICE_MODEL = ("cuda/device_model.hpp", "cuda/device_rows.hpp")  # a codec and a model whose pages are on a device
LAYER = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}

DEPENDENCIES = {  # what an include opens with: the headers or folders that may name it
    "Eigen/": ("core/tensor.hpp",),
    "xsimd/": ("kernel/native.hpp",),
    "nlohmann/": ("formats/json.hpp",),
    "pcre2.h": ("text/regex.hpp",),
    "utf8proc.h": ("text/unicode.hpp",),
    "openssl/": ("hash/sha256.hpp", "tier/redis_link.hpp"),
    "xxhash.h": ("hash/", "core/"),  # one header, whichever it is
    "cxxabi.h": ("core/type_name.hpp",),
    "immintrin.h": ("core/platform/machine.hpp",),
    "emmintrin.h": ("core/platform/machine.hpp",),
    "arm_neon.h": ("core/platform/machine.hpp",),
    "cuda": ("cuda/",),
    "lmdb.h": ("tier/",),
    "llama.h": ("adapters/llama.hpp", "adapters/llama/"),
}
SYSTEM = {"fcntl.h", "io.h", "process.h", "unistd.h", "sys/mman.h", "sys/stat.h", "sys/types.h", "sys/file.h"}
SOCKETS = {"netdb.h", "netinet/in.h", "netinet/tcp.h", "poll.h", "sys/socket.h", "unistd.h"}
ANY = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.M)


def body_of(name: str) -> str:
    """Where the bodies of a header lie, if they lie apart."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/impl/{last}"


def bodies(graph: dict[str, list[str]]) -> list[str]:
    return [f"{name}: includes {target}, which belongs to another header"
            for name, targets in graph.items() for target in targets
            if "/impl/" in target and target != body_of(name)]


def bodies_first(graph: dict[str, list[str]]) -> list[str]:
    """No header that the bodies of X include may include X: whoever includes that header first gets the bodies of X before it."""
    wrong = []
    for name in graph:
        reached, ahead = set(), [body_of(name)]
        while ahead:
            for target in graph.get(ahead.pop(), ()):
                if target != name and target not in reached:
                    reached.add(target)
                    ahead.append(target)
        wrong += [f"{one}: includes {name}, whose bodies in {body_of(name)} need it" for one in sorted(reached) if name in graph.get(one, ())]
    return wrong


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


def layers(graph: dict[str, list[str]]) -> list[str]:
    wrong = []
    for name, targets in graph.items():
        folder, _, rest = name.partition("/")
        if not rest:  # an entry header may include every folder, except those that need a device
            wrong += [f"{name}: includes {target}; cuda/ is a target of its own"
                      for target in targets if target.startswith("cuda/")]
            continue
        if folder not in LAYER:
            wrong.append(f"{name}: the folder {folder}/ has no layer in tools/layers.py")
            continue
        for target in targets:
            other = target.partition("/")[0]
            if target not in graph:
                wrong.append(f"{name}: includes {target}, which does not exist")
            elif other != folder and (other not in LAYER or LAYER[other] >= LAYER[folder]):
                wrong.append(f"{name}: includes {target}, which is not below {folder}/")
            elif folder == "cuda" and name not in DEVICE_MODEL and (other not in ("cuda", "core") or target in DEVICE_MODEL):
                wrong.append(f"{name}: includes {target}; cuda/ sees only core/, except for {', '.join(DEVICE_MODEL)}")
    return wrong


def dependencies(outside: dict[str, list[str]]) -> list[str]:
    wrong, xxhash = [], []
    for name, includes in outside.items():
        for include in includes:
            if include == "xxhash.h":
                xxhash.append(name)
            allowed = next((where for what, where in DEPENDENCIES.items() if include.startswith(what)), None)
            if allowed is None:
                if re.fullmatch(r"[a-z_0-9]+", include):
                    continue
                if include in SOCKETS and name == "tier/redis_link.hpp":
                    continue
                if include in SYSTEM:
                    if not name.startswith("core/platform/"):
                        wrong.append(f"{name}: names <{include}>; only core/platform/ names headers of a system")
                else:
                    wrong.append(f"{name}: names <{include}>, a dependency that tools/layers.py does not know")
            elif not any(name == place or (place.endswith("/") and name.startswith(place)) for place in allowed):
                wrong.append(f"{name}: names <{include}>; only {', '.join(allowed)} may")
    if len(xxhash) > 1:
        wrong.append("xxhash.h is named by " + ", ".join(xxhash) + "; only one header may")
    return wrong


REACH = {"cache": (), "core": ("cache",), "json": ("cache",), "text": ("cache", "json"), "crypto": ("cache",), "lmdb": ("cache",), "redis": ("cache",),
         "cuda": ("cache",), "llama": ("cache",)}  # besides itself and, for all but the cache, core


def component_paths() -> dict[str, str]:
    """The paths that cmake/components.cmake lists, and the component of each."""
    text = re.sub(r"#.*", "", (HOME / "cmake" / "components.cmake").read_text())
    return {path: kind for kind, paths in re.findall(r"set\(kvcache_(\w+)_paths\s([^)]*)\)", text) for path in paths.split()}


def components(graph: dict[str, list[str]]) -> list[str]:
    """A header reaches only into the components that its own is built on."""
    paths = component_paths()
    wrong = [f"cmake/components.cmake: there is no include/kvcache/{path}" for path in paths if not (INCLUDE / path).exists()]
    of = {}
    for name in graph:
        fit = [path for path in paths if name.startswith(path)]
        if fit:
            of[name] = paths[max(fit, key=len)]
        elif name.endswith(".hpp"):
            wrong.append(f"{name}: cmake/components.cmake lists no component for it")
    return wrong + [f"{name}: is of the component {of[name]} but includes {target}, of {of[target]} (cmake/components.cmake)"
                    for name, targets in graph.items() if name in of for target in targets if target in of
                    and of[target] not in (of[name], *REACH[of[name]], *(("core",) if of[name] != "cache" else ()))]


def cache_alone(graph: dict[str, list[str]], outside: dict[str, list[str]]) -> list[str]:
    """The cache compiles like a small container library: without arithmetic, and with xxHash alone. What core/platform/
    includes for lesser systems is not counted."""
    reached, ahead = {"cache.hpp"}, ["cache.hpp"]
    while ahead:
        for target in graph[ahead.pop()]:
            if target in graph and target not in reached:
                reached.add(target)
                ahead.append(target)
    allowed = re.compile(r"[a-z_0-9]+|xxhash\.h|immintrin\.h|emmintrin\.h|arm_neon\.h|" + "|".join(map(re.escape, SYSTEM)))
    heavy = {"thread", "fstream", "filesystem", "iostream", "functional", "map", "unordered_map", "regex", "future",
             "sstream", "variant"}
    return [f"cache.hpp: reaches {name}, which is arithmetic" for name in sorted(reached) if name.startswith("kernel/")] + [
        f"cache.hpp: reaches {name}, which includes <{include}>" for name in sorted(reached) if not name.startswith("core/platform/")
        for include in outside[name]
        if not allowed.fullmatch(include) or include in heavy]


def namespaces(graph: dict[str, list[str]]) -> list[str]:
    """Whoever opens the inline namespace has its name: elsewhere it would be one called KVCACHE_ABI."""
    def knows(name: str, seen: set[str]) -> bool:
        seen.add(name)
        return name == "core/abi.hpp" or any(target in graph and target not in seen and knows(target, seen) for target in graph[name])
    wrong = []
    for path in headers():
        name, text = path.relative_to(INCLUDE).as_posix(), path.read_text()
        if re.search(r"^namespace kvcache\b(?! \{ inline namespace KVCACHE_ABI \{)", text, re.M):
            wrong.append(f"{name}: opens kvcache without \"inline namespace KVCACHE_ABI\"")
        if "inline namespace KVCACHE_ABI" in text and not knows(name, set()):
            wrong.append(f"{name}: does not include kvcache/core/abi.hpp")
    return wrong


def check() -> list[str]:
    graph: dict[str, list[str]] = {}
    outside: dict[str, list[str]] = {}
    for path in headers():
        name = path.relative_to(INCLUDE).as_posix()
        includes = ANY.findall(path.read_text())
        graph[name] = [include[len("kvcache/"):] for include in includes if include.startswith("kvcache/")]
        outside[name] = [include for include in includes if not include.startswith("kvcache/")]
    return (layers(graph) + bodies(graph) + bodies_first(graph) + circles(graph) + dependencies(outside) + components(graph)
            + cache_alone(graph, outside) + namespaces(graph))


if __name__ == "__main__":
    problems = check()
    print("\n".join(problems) or f"{len(headers())} headers, every include points to a lower layer")
    sys.exit(bool(problems))
