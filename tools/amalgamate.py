#!/usr/bin/env python3
"""Writes single_include/kvcache/kvcache.hpp from include/kvcache/kvcache.hpp and what it includes.

    tools/amalgamate.py            writes the file
    tools/amalgamate.py --check    fails if the file is not what would be written

A header of ours goes in once, where it is first included. Standard headers rise to the top of the file, sorted; those
below an #if, a #define or a #pragma of the same header stay, and so do all others, because their place may matter.
"""
import re
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
OUTPUT = HOME / "single_include" / "kvcache" / "kvcache.hpp"
INCLUDE = re.compile(r"^\s*#\s*include\s+<([^>]+)>")
STANDARD = re.compile(r"[a-z_0-9]+")
OPENS = re.compile(r"^\s*#\s*if")
CLOSES = re.compile(r"^\s*#\s*endif")
DIRECTIVE = re.compile(r"^\s*#(?!\s*(include|pragma\s+once)\b)")


def amalgamate() -> str:
    seen: set[str] = set()
    hoisted: set[str] = set()
    body: list[str] = []

    def take(name: str) -> None:
        seen.add(name)
        text: list[str] = []
        depth, placed = 0, False
        for number, line in enumerate((HOME / "include" / name).read_text().splitlines(), 1):
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

    take("kvcache/kvcache.hpp")
    head = ["// SPDX-License-Identifier: MIT", "// Made by tools/amalgamate.py from include/kvcache/: edit there.",
            "#pragma once", "", *(f"#include <{name}>" for name in sorted(hoisted)), ""]
    return "\n".join(head) + "\n" + "\n".join(body)


def stale() -> bool:
    return not OUTPUT.exists() or OUTPUT.read_text() != amalgamate()


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        if stale():
            raise SystemExit(f"{OUTPUT.relative_to(HOME)} is stale: run tools/amalgamate.py")
    else:
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(amalgamate())
