"""The table of compile times in docs/getting_started.md is of headers as they are

`bench/include.py --page` writes the times, and the lines that each header reached then: ours, it and all that it includes.
A header that has grown or shrunk by more than a tenth since makes the table stale.
"""
import re

from repository import HOME, INCLUDE

PAGE = HOME / "docs" / "getting_started.md"
NOTE = re.compile(r"<!-- lines reached: (.*?) -->")
OURS = re.compile(r"^\s*#\s*include\s+<kvcache/([^>]+)>", re.M)


def lines_reached(header: str) -> int:
    """Lines of a header of ours and of all of ours that it includes."""
    seen: set[str] = set()
    ahead = [header]
    while ahead:
        if (name := ahead.pop()) not in seen and (INCLUDE / name).exists():
            seen.add(name)
            ahead += OURS.findall((INCLUDE / name).read_text())
    return sum((INCLUDE / name).read_text().count("\n") for name in seen)


def check() -> list[str]:
    noted = NOTE.search(PAGE.read_text())
    if not noted:
        return ["docs/getting_started.md: no note of the lines that the headers of its table reached; run bench/include.py --page"]
    wrong = []
    for header, lines in (entry.split() for entry in noted[1].split(", ")):
        if abs(lines_reached(header) - int(lines)) > int(lines) / 10:
            wrong.append(f"docs/getting_started.md: <kvcache/{header}> reached {lines} lines when its compile time was measured, and "
                         f"{lines_reached(header)} now; run bench/include.py --page")
    return wrong
