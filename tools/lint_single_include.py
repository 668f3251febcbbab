"""The single headers are fresh: a warning between releases, when `./dev format` writes them; an error in a release"""
import amalgamate
from repository import HOME


def check() -> list[str]:
    released = "(unreleased)" not in (HOME / "CHANGELOG.md").read_text()
    try:
        return [f"{'' if released else 'warning: '}single_include/kvcache/{name} is stale: run tools/amalgamate.py"
                for name in amalgamate.stale()]
    except SystemExit as reason:
        return [str(reason)]
