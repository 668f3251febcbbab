"""Links of pages point to files and headings that exist"""
import re

from repository import HOME, name_of, tracked

LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)")


def prose(text: str) -> str:
    """A page without its code."""
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.S | re.M)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check() -> list[str]:
    wrong = []
    for page in tracked():
        if page.suffix != ".md":
            continue
        for file, anchor in LINK.findall(prose(page.read_text())):
            target = page.parent / file if file else page
            if not target.exists():
                wrong.append(f"{name_of(page)}: {file} does not exist")
            elif not target.resolve().is_relative_to(HOME):
                wrong.append(f"{name_of(page)}: {file} is outside the repository")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
                wrong.append(f"{name_of(page)}: {file} has no heading #{anchor}")
    return wrong


if __name__ == "__main__":
    print("\n".join(check()) or "every link leads somewhere")
