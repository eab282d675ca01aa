// A quantised block of one row as plain integer codes: what file blocks decode to and packed records are
// made of. Knows: file block layouts and the value of a code. Must not know: packed layouts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/ggml_type.h"

namespace plait {

inline constexpr int32_t kMaxBlockElements = 256;

// The value of element k is, by type (d and min_d are f16, s = k / sub-block):
//   Q4_0, Q5_0       d * (code - 8), d * (code - 16)
//   Q4_1, Q5_1       d * code + min_d
//   Q8_0             d * int8(code)
//   IQ4_NL           d * kIq4Values[code]
//   IQ4_XS           (d * scale[s]) * kIq4Values[code]                    s = k / 32
//   Q4_K, Q5_K       (d * scale[s]) * code - (min_d * min[s])             s = k / 32
//   Q2_K             the same with                                        s = k / 16
//   Q3_K, Q6_K       (d * scale[s]) * (code - 4), ... * (code - 32)       s = k / 16
struct BlockCodes {
  int32_t num_elements = 0;  // 32 or 256
  uint16_t d = 0;
  uint16_t min_d = 0;
  int8_t scale[16] = {};
  int8_t min[16] = {};
  uint8_t code[kMaxBlockElements] = {};
};

extern const int8_t kIq4Values[16];

// Decodes one file block of a quantised type.
void decode_block(GgmlType type, const std::byte* src, BlockCodes& out);

// The values of a block, [num_elements]. Products of d, scale and code are exact in float32; only the
// addition of a minimum rounds.
void block_values(GgmlType type, const BlockCodes& block, float* out);

}  // namespace plait
