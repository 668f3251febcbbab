"""Programs in the README and in docs/ compile"""
from snippets import check  # noqa: F401
