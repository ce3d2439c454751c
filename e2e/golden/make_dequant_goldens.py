"""Makes dequant_goldens.txt: random blocks of every weight type, and a digest of what the gguf package makes of them.

Usage: make_dequant_goldens.py

Needs gguf and numpy. The result is committed, so that nobody else does. A line is
  TYPE ROWS COLS BLOCKS DIGEST
with the blocks in hexadecimal and FNV-1a (64 bits) over the little-endian f32 weights of all rows.
"""

import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

ROWS = 3
# Where the f16 scales (and minima) lie in a block: random bytes would make some of them infinite or NaN.
HALVES = {
    Kind.Q4_0: [0], Kind.Q4_1: [0, 2], Kind.Q5_0: [0], Kind.Q5_1: [0, 2], Kind.Q8_0: [0],
    Kind.Q2_K: [80, 82], Kind.Q3_K: [108], Kind.Q4_K: [0, 2], Kind.Q5_K: [0, 2], Kind.Q6_K: [208],
}
PLAIN = {Kind.F32: np.float32, Kind.F16: np.float16, Kind.BF16: None}


def blocks(rng, kind, count):
    """`count` random blocks, their scales of all magnitudes: negative, zero and subnormal ones too."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES[kind]:
        halves = (rng.standard_normal(count) * 10.0 ** rng.integers(-7, 2, count)).astype(np.float16)
        halves[rng.integers(0, count)] = 0
        data[:, at:at + 2] = halves.view(np.uint8).reshape(count, 2)
    return data


def plain(rng, kind, count):
    values = (rng.standard_normal(count) * 10.0 ** rng.integers(-7, 4, count)).astype(np.float32)
    if kind is Kind.BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(PLAIN[kind]).view(np.uint8)


def fnv1a(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


def main():
    rng = np.random.default_rng(20261129)
    lines = []
    for kind in [*PLAIN, *HALVES]:
        if kind in PLAIN:
            cols = 37
            data = plain(rng, kind, ROWS * cols).reshape(ROWS, -1)
        else:
            length, _ = gguf.GGML_QUANT_SIZES[kind]
            cols = max(2 * length, 160)
            data = blocks(rng, kind, ROWS * cols // length).reshape(ROWS, -1)
        weights = gguf.quants.dequantize(data, kind).astype(np.float32).reshape(ROWS, cols)
        lines.append(f"{kind.name} {ROWS} {cols} {data.tobytes().hex()} {fnv1a(weights.tobytes()):016x}\n")
    (pathlib.Path(__file__).parent / "dequant_goldens.txt").write_text("".join(lines))


main()
