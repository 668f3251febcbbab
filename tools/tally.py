#!/usr/bin/env python3
"""Names the failed tests of JUnit reports and shows the end of what each said; then, in the last line of a run, adds up
all tests and says why some were skipped.

    tools/tally.py PATH...    reports, or folders of them

Fails where a test failed or none ran."""
import html
import re
import sys
from collections import Counter
from pathlib import Path

CASE = re.compile(r'<testcase name="([^"]*)"[^>]*status="(\w+)"[^>]*>(.*?)</testcase>', re.S)
REASON = re.compile(r"SKIPPED: *(.+)")
OUTPUT = re.compile(r"<system-out>(.*?)</system-out>", re.S)
LINES = 20  # of a failed test's output


def main(paths: list[Path]) -> int:
    total: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for report in sorted(one for path in paths for one in (path.glob("*.xml") if path.is_dir() else [path])):
        for name, status, rest in CASE.findall(report.read_text(errors="replace")):
            total[status] += 1
            if status == "fail":
                print(f"FAILED in {report.stem}: {html.unescape(name)}")
                if said := OUTPUT.search(rest):
                    print("\n".join("    " + line[:200] for line in html.unescape(said[1]).strip().splitlines()[-LINES:]))
            elif status != "run":
                found = REASON.search(rest)
                reasons[html.unescape(found[1]).strip() if found else "it is switched off"] += 1
    skipped = sum(reasons.values())
    why = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    print(f"{total['run']} passed, {total['fail']} failed, {skipped} skipped" + (f": {why}" if why else ""))
    return 1 if total["fail"] or not total["run"] else 0


if __name__ == "__main__":
    sys.exit(main([Path(path) for path in sys.argv[1:]]))
