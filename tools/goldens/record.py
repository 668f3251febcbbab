#!/usr/bin/env python3
"""Writes the records of tests/golden, from docs/format.md and hashlib alone."""
import hashlib
import hmac
import struct
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
SECRET = b"a secret"
FORMAT = 2


def number(n: int) -> bytes:
    return struct.pack("<Q", n)


def text(words: bytes) -> bytes:
    return number(len(words)) + words


def mac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


FIELDS = {
    "weights": "00000000000000020000000000000001", "adapter": "", "tokenizer": "00000000000000040000000000000003",
    "config": "llama", "rope": "theta 10000", "codec": "float32", "layout": "tiles", "page_tokens": "16",
    "weight_format": "bf16", "numeric_contract": "1", "backend": "cpu", "lineage": "exact", "format": str(FORMAT),
    "tenant": mac(SECRET, text(b"kvcache salt") + text(b"alice")).hex()}


def identity() -> bytes:
    message = text(b"kvcache identity") + number(FORMAT)
    for name, value in FIELDS.items():
        message += text(name.encode()) + text(value.encode())
    return mac(SECRET, message)


def chain(before: bytes, tokens: list[int]) -> bytes:
    key = mac(SECRET, text(b"kvcache tenant") + text(b"alice"))
    return mac(key, before + number(len(tokens)) + struct.pack(f"<{len(tokens)}i", *tokens))


def chunk(place: int, begin: list[int]) -> bytes:
    key = mac(SECRET, text(b"kvcache tenant") + text(b"alice"))
    return mac(key, text(b"kvcache chunk") + identity() + number(place) + number(len(begin)) + struct.pack(f"<{len(begin)}i", *begin))


def block(page: bytes, group: int) -> bytes:
    key = mac(SECRET, text(b"kvcache tenant") + text(b"alice"))
    return mac(key, text(b"kvcache block") + page + number(group))


def aligned(data: bytes, to: int) -> bytes:
    return data + bytes(-len(data) % to)


def record(kind: int, first: int, tokens: list[int], before: bytes, name: bytes, parts: list[tuple[int, int, int, bytes]]) -> bytes:
    seal = mac(SECRET, text(b"kvcache seal"))
    fields = struct.pack("<I", len(FIELDS))
    for key, value in FIELDS.items():
        for words in (key.encode(), value.encode()):
            fields += struct.pack("<I", len(words)) + words
    identity_at = 256 + 64 * len(parts)
    tokens_at = -(-(identity_at + len(fields)) // 8) * 8
    header_bytes = -(-(tokens_at + 4 * len(tokens)) // 64) * 64
    table, payload = b"", b""
    for what, index, rows, content in parts:
        payload = aligned(payload, 64)
        table += struct.pack("<IIQQII", what, index, header_bytes + len(payload), len(content), rows, 0) + mac(seal, content)
        payload += content
    fixed = b"\x89kvc\r\n\x1a\n" + struct.pack("<IIIIQQQQQQQQQ", FORMAT, kind, 2, len(parts), header_bytes, header_bytes + len(payload),
                                                first, len(tokens), tokens_at, identity_at, len(fields), 256, 0)
    fixed += identity() + before + name + bytes(32)
    behind = aligned(aligned(table + fields, 8) + struct.pack(f"<{len(tokens)}i", *tokens), 64)
    return fixed + mac(seal, fixed + behind) + behind + payload


if __name__ == "__main__":
    run = [1, -2, 3] + list(range(100, 113))
    page = bytes(i * 7 % 256 for i in range(200))
    second = chain(chain(identity(), run), run)
    GOLDEN.joinpath("page.record").write_bytes(
        record(1, 16, run, chain(identity(), run), second, [(1, 0, 16, page)]))
    GOLDEN.joinpath("sequence.record").write_bytes(
        record(2, 0, run + [5], identity(), chain(chain(identity(), run), [5]),
               [(1, 0, 16, page), (1, 1, 1, page[::-1]), (2, 1, 1, page[:100]), (3, 2, 0, b"speaking")]))
    GOLDEN.joinpath("chunk.record").write_bytes(
        record(3, 9, run + [5], chain(identity(), run), chunk(1, (run + [5])[9:17]), [(1, 0, 1, page[::-1])]))
    GOLDEN.joinpath("block.record").write_bytes(
        record(4, 16, run, chain(identity(), run), block(second, 2), [(16 + 2, 0, 0, page)]))
