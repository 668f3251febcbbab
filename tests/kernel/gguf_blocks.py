#!/usr/bin/env python3
"""Prints the table of digests in dequantize.test.cpp, computed by the reference: the package `gguf` (pip install gguf).

The blocks are those of tests/kernel/blocks.hpp: bytes of a hash, with every pair of extreme scales.
"""
import numpy as np
from gguf import GGMLQuantizationType as kind
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

FIELDS = {  # offsets of the binary16 numbers in a block: the scale, then perhaps the offset
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}
EXTREMES = [sign << 15 | exponent << 10 | fraction
            for sign in (0, 1) for exponent in (0, 1, 14, 15, 16, 30, 31) for fraction in (0, 1, 0x155, 0x200, 0x3FF)]


def hashed(seed: np.ndarray, index: np.ndarray) -> np.ndarray:
    x = seed.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + index.astype(np.uint64) + np.uint64(0x632BE59BD9B4E019)
    for _ in range(2):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return x


def blocks(name: str) -> np.ndarray:
    size = GGML_QUANT_SIZES[kind[name]][1]
    count = len(EXTREMES) ** 2
    index = np.arange(count * size, dtype=np.uint64)
    made = (hashed(np.full_like(index, kind[name].value), index) >> np.uint64(56)).astype(np.uint8).reshape(count, size)
    for field, at in enumerate(FIELDS[name]):
        which = [EXTREMES[i // len(EXTREMES) if field else i % len(EXTREMES)] for i in range(count)]
        made[:, at:at + 2] = np.array(which, dtype="<u2").view(np.uint8).reshape(count, 2)
    return made


np.seterr(all="ignore")
for name in FIELDS:
    numbers = quants.dequantize(blocks(name), kind[name]).astype(np.float32).ravel()
    bits = numbers.view(np.uint32).astype(np.uint64)
    bits[np.isnan(numbers)] = 0x7FC00000
    digest = int(hashed(bits, np.arange(bits.size, dtype=np.uint64)).sum(dtype=np.uint64))
    print(f"    {{kv::block_format::{name.lower()}, 0x{digest:016x}}},")
