#!/usr/bin/env python3
"""The server under inference-perf, with the configuration that is shipped: conversations of several turns behind shared
prefixes.

    inference_perf.py SERVER MODEL

./dev test installs the package (requirements.txt) where PyPI can be had and there is a Python 3.12; without it nothing
is asked.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import running
from running import check

SERVER, MODEL = sys.argv[1:3]
ROOT = Path(__file__).parents[2]
PROGRAM = shutil.which("inference-perf", path=f"{running.CLIENTS.parent}:{os.environ.get('PATH', '')}")


def main():
    if not PROGRAM:
        print("SKIPPED: inference-perf is not installed, and ./dev test could not fetch it (it asks for Python 3.12)")
        return
    at = running.Server(SERVER, MODEL)
    shipped = (ROOT / "examples" / "load" / "inference_perf.yml").read_text()
    with tempfile.TemporaryDirectory() as folder:
        asked = shipped
        for was, now in ((":8080", f":{at.port}"), ("path: build/inference-perf", f"path: {folder}/report"),
                         ("examples/models/worlds-2m #", f"{MODEL} #"), ("duration: 10", "duration: 5")):
            check(was in asked, f"the configuration says {was}")
            asked = asked.replace(was, now)
        config = Path(folder) / "config.yml"
        config.write_text(asked)
        done = subprocess.run([PROGRAM, "--config_file", str(config)], capture_output=True, text=True, timeout=240,
                              env={**os.environ, "HF_HUB_OFFLINE": "1"})
        check(done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:])
        report = json.loads((Path(folder) / "report" / "summary_lifecycle_metrics.json").read_text())
    check(report["failures"]["count"] == 0, report["failures"])
    check(report["successes"]["count"] == report["load_summary"]["count"] == 40, report["load_summary"])
    check(report["successes"]["prompt_tokens"]["cached"] > report["successes"]["prompt_tokens"]["uncached"],
          report["successes"]["prompt_tokens"])
    at.stop()
    print(f"inference_perf.py: {running.checks} checks hold; {report['successes']['count']} requests, 0 failures")


main()
