"""Commit subjects: "scope: what it does", at most 60 characters"""
import re
import subprocess

from repository import HOME


def check() -> list[str]:
    log = subprocess.run(["git", "log", "-1", "--no-merges", "--format=%s"], cwd=HOME, capture_output=True, text=True, check=False)
    subject = log.stdout.strip()
    if log.returncode or not subject:
        return []
    found = []
    if len(subject) > 60:
        found.append(f"warning: {len(subject)} characters: {subject}")
    if not re.match(r"^[a-z][a-z0-9_/]*: \S", subject):
        found.append(f"warning: no scope: {subject}")
    return found
