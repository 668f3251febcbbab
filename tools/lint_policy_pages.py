"""Pages of docs/policies: the same headings, and tables that say what the lists say"""
from policies import check  # noqa: F401
