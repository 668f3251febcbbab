#!/usr/bin/env python3
"""Names the failed tests of the JUnit reports in a folder and adds up all tests: the last line of a run.

Fails where a test failed or none ran."""
import re
import sys
from pathlib import Path


def main(folder: Path) -> int:
    total = {"tests": 0, "failures": 0, "skipped": 0, "disabled": 0}
    for report in sorted(folder.glob("*.xml")):
        text = report.read_text(errors="replace")
        suite = re.search(r"<testsuite\b[^>]*>", text, re.S)
        for name in re.findall(r'<testcase name="([^"]*)"[^>]*status="fail"', text):
            print(f"FAILED in {report.stem}: {name}")
        for name in total:
            count = suite and re.search(rf'\b{name}="(\d+)"', suite[0])
            total[name] += int(count[1]) if count else 0
    idle = total["skipped"] + total["disabled"]
    passed = total["tests"] - total["failures"] - idle
    print(f"{passed} passed, {total['failures']} failed, {idle} skipped")
    return 1 if total["failures"] or not passed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
