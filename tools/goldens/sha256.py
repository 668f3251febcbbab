#!/usr/bin/env python3
"""Prints the names that tests/hash/sha256.test.cpp expects, from the description in hash/sha256.hpp and hashlib alone."""
import hashlib
import struct


def number(n: int) -> bytes:
    return struct.pack("<Q", n)


def text(words: bytes) -> bytes:
    return number(len(words)) + words


def block(purpose: bytes, key: bytes) -> bytes:
    return purpose.ljust(32, b"\0") + hashlib.sha256(text(b"kvcache key 1") + text(key)).digest()


def root(key: bytes, **given: bytes | int) -> bytes:
    fields: dict[str, bytes | int] = {
        "weights": bytes(16), "adapter": b"", "tokenizer": bytes(16), "config": b"", "rope": b"", "codec": b"", "layout": b"",
        "page_tokens": 0, "weight_format": b"", "numeric_contract": 1, "backend": b"cpu", "lineage": b"exact", "format": 1, "tenant": b""} | given
    message = block(b"kvcache identity 3", key)
    for name, value in fields.items():
        message += text(name.encode())
        if isinstance(value, int):
            message += number(value)
        else:
            message += value if name in ("weights", "tokenizer") else text(value)
    return hashlib.sha256(message).digest()[:16]


def chain(key: bytes, before: bytes, run: range) -> bytes:
    tokens = struct.pack(f"<{len(run)}i", *run)
    return hashlib.sha256(block(b"kvcache chain 1", key) + before + number(len(run)) + tokens).digest()[:16]


if __name__ == "__main__":
    for key in (b"", b"a secret", bytes(100)):
        first = chain(key, root(key), range(1, 4))
        second = chain(key, first, range(-8, 56))
        other = root(key, tenant=b"alice", page_tokens=64, config=b"llama", weights=bytes(range(16)))
        print(key, *(name.hex() for name in (root(key), other, first, second, chain(key, second, range(0)))))
