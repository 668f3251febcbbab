#!/usr/bin/env python3
"""Writes the tables of docs/policies/ROLE.md, between the markers, from the lists in include/kvcache/ROLE/all.hpp.

    tools/policies.py            writes the tables
    tools/policies.py --check    fails if a page is not what would be written

A row is a policy of a list: its name, its options with their defaults, and the first sentence of its comment.
"""
import re
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
INCLUDE, PAGES = HOME / "include" / "kvcache", HOME / "docs" / "policies"
BEGIN, END = "<!-- policies: made by tools/policies.py -->", "<!-- end of policies -->"
HEADINGS = ("Promise", "Laws", "Policies here", "Write your own", "Papers")
OPTION = re.compile(r"^    (?!using|class|struct|enum|static|\[\[|///|//|return|case)[\w:<>(), ]+? (\w+) = ([^;]+);", re.M)


def listed(role: str) -> list[str]:
    """The names in the role's lists, each once, without arguments of templates."""
    names: list[str] = []
    for file in ("all.hpp", "crypto.hpp", "disk.hpp", "remote.hpp"):
        path = INCLUDE / role / file
        found = re.search(r"using \w+_policies =\s*std::tuple<(.*)>;", path.read_text(), re.S) if path.exists() else None
        for name in re.findall(r"(\w+)(?:<\w+>)?(?:,|$)", " ".join(found[1].split()) if found else ""):
            if name not in names:
                names.append(name)
    return names


def definition(role: str, name: str) -> tuple[str, str]:
    """The comment of a policy, and its body up to the line that closes it."""
    for path in sorted((INCLUDE / role).glob("*.hpp")):
        found = re.search(rf"((?:^///[^\n]*\n)+)(?:^template[^\n]*\n)?^struct {name} \{{\n(.*?)^\}};", path.read_text(), re.M | re.S)
        if found:
            return found[1], found[2]
    raise SystemExit(f"{role}: no header defines {name} with a comment")


def table(role: str) -> str:
    rows = ["| policy | options | in short |", "|---|---|---|"]
    for name in listed(role):
        comment, body = definition(role, name)
        words = " ".join(line.removeprefix("///").strip() for line in comment.splitlines())
        first = re.match(r".*?[.](?= [A-Z`]|$)", words)
        body = re.split(r"^    class state \{|^    struct state \{", body, maxsplit=1, flags=re.M)[0]
        options = ", ".join(f"`{option} = {value}`" for option, value in OPTION.findall(body)) or "-"
        rows.append(f"| `{name}` | {options} | {first[0] if first else words} |".replace("||", "\\|\\|"))
    return "\n".join(rows)


def pages() -> list[Path]:
    return sorted(PAGES.glob("*.md")) if PAGES.is_dir() else []


def renewed(page: Path) -> str:
    """The page with its table as it should be. A page without markers is left as it is."""
    text = page.read_text()
    if BEGIN not in text or END not in text:
        return text
    head, rest = text.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{table(page.stem)}\n{END}{rest.split(END, 1)[1]}"


def check() -> list[str]:
    wrong = []
    for page in pages():
        name = page.relative_to(HOME).as_posix()
        headings = tuple(re.findall(r"^## (.*)$", page.read_text(), re.M))
        if headings != HEADINGS:
            wrong.append(f"{name}: its headings are {', '.join(headings) or 'none'}, not {', '.join(HEADINGS)}")
        if page.read_text() != renewed(page):
            wrong.append(f"{name}: its table is stale: run tools/policies.py")
    return wrong


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        problems = check()
        print("\n".join(problems) or "every page has its headings and its table")
        sys.exit(bool(problems))
    for one in pages():
        one.write_text(renewed(one))
