"""Writes native/kernels/matmul/dequantize_golden.h: what the `gguf` package makes of pseudo-random blocks.

Run with an interpreter that has `gguf` and `numpy`:  python tools/gen_dequantize_golden.py
The same blocks are made by random_blocks() in native/kernels/matmul/random_blocks.h; keep the two in step.
"""

from pathlib import Path

import gguf
import numpy as np

NUM_BLOCKS = 40  # per type
TARGET = Path(__file__).resolve().parent.parent / "native/kernels/matmul/dequantize_golden.h"
# Offsets of the f16 fields of a block.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}
MASK64 = (1 << 64) - 1


def splitmix64(state: int) -> tuple[int, int]:
    state = (state + 0x9E3779B97F4A7C15) & MASK64
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return state, z ^ (z >> 31)


def random_blocks(name: str, num_blocks: int, seed: int) -> np.ndarray:
    """Pseudo-random bytes, with every f16 scale moved to a moderate exponent."""
    _, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = np.empty((num_blocks, num_bytes), dtype=np.uint8)
    state = seed
    flat = data.reshape(-1)
    for i in range(flat.size):
        state, value = splitmix64(state)
        flat[i] = value >> 56
    for offset in HALVES[name]:
        data[:, offset + 1] = (data[:, offset + 1] & 0x8F) | 0x20
    return data


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK64
    return value


def main() -> None:
    lines = []
    for name in HALVES:
        kind = gguf.GGMLQuantizationType[name]
        values = gguf.quants.dequantize(random_blocks(name, NUM_BLOCKS, int(kind)), kind)
        values = np.ascontiguousarray(values.reshape(-1), dtype="<f4")
        first = ", ".join(f"{float(v).hex()}F" for v in values[:4])
        lines.append(f"    {{GgmlType::k{name}, 0x{fnv1a(values.tobytes()):016x}ULL, {{{first}}}}},")
    TARGET.write_text(
        "// Written by tools/gen_dequantize_golden.py: do not edit.\n"
        "// FNV-1a of the float32 bytes, and the first values, of random_blocks(type, 40 blocks, seed = type).\n"
        "#pragma once\n\n#include <cstdint>\n\n"
        '#include "base/ggml_type.h"\n\n'
        "namespace plait {\n\n"
        f"inline constexpr int64_t kGoldenBlocks = {NUM_BLOCKS};\n\n"
        "struct DequantizeGolden {\n  GgmlType type;\n  uint64_t hash;\n  float first[4];\n};\n\n"
        "// clang-format off\n"
        "inline constexpr DequantizeGolden kDequantizeGolden[] = {\n" + "\n".join(lines) + "\n};\n"
        "// clang-format on\n\n"
        "}  // namespace plait\n"
    )


if __name__ == "__main__":
    main()
