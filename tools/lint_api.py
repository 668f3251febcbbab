"""docs/api.md: each header defines the names of its row, and the section's header includes it"""
import re

from repository import HOME, INCLUDE, code_of

PAGE = HOME / "docs" / "api.md"
ROW = re.compile(r"^\| (`.*?) \| .* \| `([\w/]+\.hpp)` \|$")
SECTION = re.compile(r"^## (?:`<kvcache/([\w.]+)>`)?")


def reached(entry: str) -> set[str]:
    """The headers that `entry` includes, itself among them."""
    found, ahead = {entry}, [entry]
    while ahead:
        for target in re.findall(r"#\s*include <kvcache/([^>]+)>", (INCLUDE / ahead.pop()).read_text()):
            if target not in found:
                found.add(target)
                ahead.append(target)
    return found


def defines(code: str, name: str) -> bool:
    """Whether code has a type, a concept or a function of this name."""
    return re.search(rf"\b(?:class|struct|concept|using|enum class)\s+(?:\[\[\w+\]\]\s+)?{name}\b|(?:^|[&>\w] ){name}\(", code,
                     re.M) is not None


def check() -> list[str]:
    wrong: list[str] = []
    entry, included, rows = None, set[str](), 0
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        if section := SECTION.match(line):
            entry = section[1]
            included = reached(entry) if entry else set()
        if not (row := ROW.match(line)):
            continue
        rows += 1
        if not (INCLUDE / row[2]).exists():
            wrong.append(f"docs/api.md:{number}: there is no {row[2]}")
            continue
        if entry and row[2] not in included:
            wrong.append(f"docs/api.md:{number}: {entry} does not include {row[2]}")
        code = code_of((INCLUDE / row[2]).read_text())
        wrong += [f"docs/api.md:{number}: {row[2]} does not define {name}"
                  for name in re.findall(r"`(?:\w+::)*(\w+)`", row[1]) if not defines(code, name)]
    return wrong if rows else ["docs/api.md: it has no rows"]


if __name__ == "__main__":
    print("\n".join(check()) or "every name exists")
