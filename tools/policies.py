#!/usr/bin/env python3
"""Writes the tables of docs/policies/ROLE.md, between the markers, from the lists in include/kvcache/ROLE/all.hpp.

    tools/policies.py            writes the tables
    tools/policies.py --check    fails if a page is not what would be written

A row is a policy of a list: its name with template parameters, its options (data members) with their defaults, and the
first sentence of its comment.
"""
import re
import sys
from pathlib import Path

from repository import COMPONENT_POLICIES

HOME = Path(__file__).resolve().parents[1]
INCLUDE, PAGES = HOME / "include" / "kvcache", HOME / "docs" / "policies"
BEGIN, END = "<!-- policies: made by tools/policies.py -->", "<!-- end of policies -->"
HEADINGS = ("Promise", "Conformance tests", "Policies here", "Write your own", "Papers")
MEMBER = re.compile(r"^    (?=\S)(?!using|class|struct|enum|static|friend|template|\[\[|///|//)([\w:<>(),*& ]+?)[ *&](\w+)"
                    r"(?: = ([^;]+)|\{([^;}]*)\});", re.M)
UNITS = {10: "KiB", 20: "MiB", 30: "GiB"}
COUNTS = ("records",)  # written as a shift, and no bytes


def arguments(text: str) -> list[str]:
    """The arguments of a template, split at the commas that belong to it."""
    found, depth, begin = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and depth == 0:
            found.append(text[begin:i])
            begin = i + 1
    return [one.strip() for one in [*found, text[begin:]] if one.strip()]


def listed(role: str) -> list[str]:
    """The names in the role's list, then those of components, each once, without namespaces and template arguments."""
    found = re.search(r"using \w+_policies =\s*std::tuple<(.*)>;", (INCLUDE / role / "all.hpp").read_text(), re.S)
    names = [one.split("<", 1)[0].split("::")[-1] for one in (arguments(" ".join(found[1].split())) if found else [])]
    return list(dict.fromkeys([*names, *COMPONENT_POLICIES.get(role, ())]))


def definition(role: str, name: str) -> tuple[str, str, str]:
    """The comment of a policy, the parameters of its template, and its body up to the line that closes it."""
    for path in sorted((INCLUDE / role).glob("*.hpp")):
        found = re.search(rf"((?:^///[^\n]*\n)+)(?:^template <([^\n]*)>\n)?^struct {name} \{{\n(.*?)^\}};",
                          path.read_text(), re.M | re.S)
        if found:
            parameters = [one.split(" = ")[0].split()[-1] for one in arguments(found[2] or "")]
            return found[1], ", ".join(parameters), found[3]
    raise SystemExit(f"{role}: no header defines {name} with a comment")


def default(kind: str, name: str, value: str) -> str:
    """A default as people write it: 64 MiB and 100 ms, not std::size_t{64} << 20 and std::chrono::milliseconds(100)."""
    value = " ".join(value.split()) or "{}"
    if shift := re.fullmatch(r"std::size_t\{(\d+)\} << (\d+)", value):
        number, power = int(shift[1]), int(shift[2])
        unit = max(size for size in UNITS if size <= power)
        return str(number << power) if name in COUNTS else f"{number << (power - unit)} {UNITS[unit]}"
    time = re.fullmatch(r"std::chrono::(\w+)\((\d+)\)", value)
    if not time and value.isdigit():
        time = re.match(r"std::chrono::(\w+)()", kind)
    return f"{time[2] or value} {dict(milliseconds='ms', seconds='s', hours='h')[time[1]]}" if time else value


def options(body: str) -> list[str]:
    """Each data member of a policy with its default. What functions and nested types declare is indented deeper."""
    return [f"`{name} = {default(kind, name, equal or brace)}`" for kind, name, equal, brace in MEMBER.findall(body)]


def table(role: str) -> str:
    rows = ["| policy | options | in short |", "|---|---|---|"]
    for name in listed(role):
        comment, parameters, body = definition(role, name)
        words = " ".join(line.removeprefix("///").strip() for line in comment.splitlines())
        first = re.match(r".*?[.](?= [A-Z`]|$)", words)
        shown = f"{name}<{parameters}>" if parameters else name
        rows.append(f"| `{shown}` | {', '.join(options(body)) or '-'} | {first[0] if first else words} |".replace("||", "\\|\\|"))
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
