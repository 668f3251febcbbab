#!/usr/bin/env python3
"""Runs the rules of the repository: each tools/lint_*.py is one, and a new rule is a new file.

A rule's first docstring line is its name, and its check() returns what is wrong, one line each. A line that opens
with "warning: " is told but does not fail the run.
"""
import importlib
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent


def main() -> int:
    sys.path.insert(0, str(TOOLS))
    wrong = warned = rules = 0
    for path in sorted(TOOLS.glob("lint_*.py")):
        rule = importlib.import_module(path.stem)
        found = rule.check()
        errors = [line for line in found if not line.startswith("warning: ")]
        wrong, warned, rules = wrong + len(errors), warned + len(found) - len(errors), rules + 1
        print(f"{'FAIL' if errors else 'ok  '}  {rule.__doc__.strip().splitlines()[0]}")
        for line in found:
            print(f"      {line}")
    print(f"{rules} rules, {wrong} errors, {warned} warnings")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
