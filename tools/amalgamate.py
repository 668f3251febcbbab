#!/usr/bin/env python3
"""Writes the single headers in single_include/kvcache/: kvcache.hpp from include/kvcache/kvcache.hpp and what it includes,
cache.hpp from include/kvcache/cache.hpp with every policy that needs no more.

    tools/amalgamate.py            writes the files
    tools/amalgamate.py --check    fails if one is not what would be written

With KVCACHE_DECLARATIONS, kvcache.hpp only declares what is expensive to compile, and with KVCACHE_IMPLEMENTATION it also
defines it, by the files of src/ that the compiled form has for its headers.

A header of ours goes in once, where it is first included. Standard headers rise to the top of the file, sorted; those
below an #if, a #define or a #pragma of the same header stay, and so do all others, because their place may matter.
"""
import re
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
SINGLE = HOME / "single_include" / "kvcache"
ROLES = ("eviction", "hash", "index", "layers", "locking", "observer", "recompute", "storage")
FILES = {"kvcache.hpp": ["kvcache/kvcache.hpp", "kvcache/cache/block_tables.hpp"],
         "cache.hpp": ["kvcache/cache.hpp", "kvcache/cache/block_tables.hpp", "kvcache/layer_groups.hpp",
                       *(f"kvcache/{role}/all.hpp" for role in ROLES)]}
SOURCES = {"kvcache.hpp": ["kernel", "attention"]}  # folders of src/
GUARD = ["#if __cplusplus < 202002L", '#error "kvcache: C++20 is needed; compile with -std=c++20"', "#else"]
INCLUDE = re.compile(r"^\s*#\s*include\s+<([^>]+)>")
STANDARD = re.compile(r"[a-z_0-9]+")
OPENS = re.compile(r"^\s*#\s*if")
CLOSES = re.compile(r"^\s*#\s*endif")
DIRECTIVE = re.compile(r"^\s*#(?!\s*(include|pragma\s+once)\b)")


def amalgamate(roots: list[str], folders: list[str]) -> str:
    seen: set[str] = set()
    hoisted: set[str] = set()
    body: list[str] = []

    def take(name: str) -> None:
        seen.add(name)
        text: list[str] = []
        depth, placed = 0, False
        lines = (HOME / "include" / name).read_text().splitlines()
        if GUARD[0] in lines and name.count("/") == 1:  # the single header has one of its own
            lines = [line for line in lines if line not in (*GUARD, "#endif")]
        for number, line in enumerate(lines, 1):
            if DIRECTIVE.match(line):
                placed = True
                depth += bool(OPENS.match(line)) - bool(CLOSES.match(line))
            elif re.match(r'^\s*#\s*include\s+"', line):
                raise SystemExit(f"{name}:{number}: include with <...>, so that the single header can be made")
            elif match := INCLUDE.match(line):
                if match[1].startswith("kvcache/"):
                    if depth:
                        raise SystemExit(f"{name}:{number}: a header of ours is included inside an #if")
                    if match[1] not in seen:
                        take(match[1])
                    continue
                if not placed and STANDARD.fullmatch(match[1]):
                    hoisted.add(match[1])
                    continue
            if line.strip() != "#pragma once" and not line.startswith("// SPDX"):
                text.append(line)
        own = re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip()
        if own:
            body.append(f"// ---- {name} ".ljust(118, "-") + f"\n\n{own}\n")

    for root in roots:
        take(root)
    implementation: list[str] = []
    for source in sorted(one for folder in folders for one in (HOME / "src" / folder).rglob("*.cpp")):
        lines = source.read_text().splitlines()
        if outside := [match[1] for line in lines if (match := INCLUDE.match(line)) and match[1] not in seen]:
            raise SystemExit(f"{source}: includes {outside[0]}, which the single header has not")
        own = "\n".join(line for line in lines if not INCLUDE.match(line) and not line.startswith("// SPDX")).strip()
        implementation.append(f"// ---- {source.relative_to(HOME)} ".ljust(118, "-") + f"\n\n{own}\n")
    if implementation:
        body.append("\n".join(["#if defined(KVCACHE_IMPLEMENTATION)\n", *implementation, "#endif\n"]))
    head = ["// SPDX-License-Identifier: MIT", "// Made by tools/amalgamate.py from include/kvcache/: edit there.",
            "#pragma once", "", *GUARD, "", *(f"#include <{name}>" for name in sorted(hoisted)), ""]
    return "\n".join(head) + "\n" + "\n".join(body) + "\n#endif\n"


def stale() -> list[str]:
    """The single headers that are not what would be written."""
    return [name for name, roots in FILES.items()
            if not (SINGLE / name).exists() or (SINGLE / name).read_text() != amalgamate(roots, SOURCES.get(name, []))]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        if old := stale():
            raise SystemExit(f"single_include/kvcache: stale, run tools/amalgamate.py: {', '.join(old)}")
    else:
        SINGLE.mkdir(parents=True, exist_ok=True)
        for name, roots in FILES.items():
            (SINGLE / name).write_text(amalgamate(roots, SOURCES.get(name, [])))
