"""Prose: comments, messages, titles of tests and pages are in plain English"""
import re

from repository import name_of, tracked

CODE = {".hpp", ".cpp", ".cu", ".cuh"}
# Pages that quote the habits themselves: the lab's diaries, the history, the style guide.
QUOTES = ("lab/", "CHANGELOG.md", "CONTRIBUTING.md", "single_include/", "bench/compare/")
# Words that the prose replaces, and what to write. They are looked for in comments of code and in pages.
HABITS = {
    r"of late": "recently",
    r"by turns": "alternately",
    r"somebody|nobody|whoever": "the caller, a thread, no other sequence",
    r"behind": "after (a position), below (a layer)",
    r"beside": "compared with, next to",
    r"a number that is none|no finite number": "NaN, not finite",
    r"whole numbers?": "integer",
    r"the books|books are|books add": "the page manager, the counts",
    r"lets? go of|let go|lets? [a-z]+ (?:ones? )?go": "releases, drops a reference",
    r"woven|weaves?": "spliced",
    r"teams?": "thread pool",
    r"floors?": "layer",
    r"house": "repository",
    r"laws?": "property, conformance test",
}
HABIT = re.compile(r"\b(?:" + "|".join(f"({habit})" for habit in HABITS) + r")\b", re.I)
TITLE = re.compile(r'\b(?:TEST_CASE|TEMPLATE_TEST_CASE|TEMPLATE_LIST_TEST_CASE|SECTION)\(\s*"((?:\\.|[^"\\])*)"')
TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|[A-Za-z_]\w*", re.S)


def prose(text: str, is_code: bool, is_library: bool) -> list[tuple[int, str]]:
    """Comments, string literals and titles of tests, or lines of a page outside its code blocks."""
    if not is_code:
        text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.S | re.M)
        return [(number, re.sub(r"`[^`]*`|\([^)\s]*\)", "", line)) for number, line in enumerate(text.splitlines(), 1)]
    texts = ("//", "/*", '"') if is_library else ("//", "/*")
    is_name = re.compile(r'"\w*"').fullmatch  # of a format or a function, such as "floor"
    found = [(one.start(), one[0]) for one in TOKEN.finditer(text) if one[0].startswith(texts) and not is_name(one[0])]
    found += [(one.start(), one[1]) for one in TITLE.finditer(text)]
    return [(text.count("\n", 0, at) + 1, words) for at, words in found]


def check() -> list[str]:
    wrong, meanings = [], list(HABITS.values())
    for path in tracked():
        name, is_code = name_of(path), path.suffix in CODE
        if name.startswith(QUOTES) or not (is_code or path.suffix == ".md"):
            continue
        for number, line in prose(path.read_text(), is_code, name.startswith(("include/", "examples/"))):
            for found in HABIT.finditer(line):
                wrong.append(f"{name}:{number}: \"{found[0]}\": write {meanings[found.lastindex - 1]}")
    return wrong


if __name__ == "__main__":
    print("\n".join(check()) or "plain English")
