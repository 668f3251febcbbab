#!/usr/bin/env python3
"""Names the failed tests of JUnit reports, adds up all tests, and says why some were skipped: the last line of a run.

    tools/tally.py PATH...    reports, or folders of them

Fails where a test failed or none ran."""
import html
import re
import sys
from collections import Counter
from pathlib import Path

CASE = re.compile(r'<testcase name="([^"]*)"[^>]*status="(\w+)"[^>]*>(.*?)</testcase>', re.S)
REASON = re.compile(r"SKIPPED: *(.+)")


def main(paths: list[Path]) -> int:
    total: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for report in sorted(one for path in paths for one in (path.glob("*.xml") if path.is_dir() else [path])):
        for name, status, rest in CASE.findall(report.read_text(errors="replace")):
            total[status] += 1
            if status == "fail":
                print(f"FAILED in {report.stem}: {html.unescape(name)}")
            elif status != "run":
                found = REASON.search(rest)
                reasons[html.unescape(found[1]).strip() if found else "it is switched off"] += 1
    skipped = sum(reasons.values())
    why = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    print(f"{total['run']} passed, {total['fail']} failed, {skipped} skipped" + (f": {why}" if why else ""))
    return 1 if total["fail"] or not total["run"] else 0


if __name__ == "__main__":
    sys.exit(main([Path(path) for path in sys.argv[1:]]))
