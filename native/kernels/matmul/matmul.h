// Matrix product of packed weights with quantised activations: out[t][n] = sum_k act[t][k] * w[n][k].
// Knows: packed layouts. Must not know: pools, plans, models.
//
// INVARIANT: out[t][n] depends only on row n of w and token t of the activations: it is reduced over K block
// by block, in rising order, in one lane. The tile of tokens, the range of rows and the thread do not change
// a bit of it, and the scalar reference, which calls std::fma in the same order, gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/ggml_type.h"
#include "kernels/quantize/acts.h"

namespace plait {

inline constexpr int32_t kRowGroup = 8;  // rows that are packed together: one 256-bit lane set of int32

// One kind per accumulation scheme, not per file type: types differ by how a block unpacks into it.
enum class PackedKind : uint8_t {
  kU4x32,   // 4-bit unsigned, f16 scale and f16 min per 32:   Q4_0, Q4_1, (Q4_K: f32 scale and min)
  kU4x32F,  // the same with f32 scale and min:                Q4_K
  kS8x32,   // 8-bit signed, f16 scale per 32:                 Q8_0, Q5_0, IQ4_NL
  kS8x32F,  // 8-bit signed, f32 scale and min per 32:         Q5_1, Q5_K, IQ4_XS
  kS8x16F,  // 8-bit signed, f32 scale and min per 16:         Q6_K, Q3_K, Q2_K
  kF16, kBF16, kF32,
};

struct PackedMatrix {
  const std::byte* data = nullptr;  // 64-byte aligned
  size_t num_bytes = 0;
  int32_t rows = 0;  // a multiple of kRowGroup
  int32_t cols = 0;  // a multiple of kBlock
  PackedKind kind = PackedKind::kF32;
};

PackedKind packed_kind(GgmlType type);
constexpr bool is_float_kind(PackedKind kind) {
  return kind == PackedKind::kF16 || kind == PackedKind::kBF16 || kind == PackedKind::kF32;
}

// Bytes of a packed [rows, cols] matrix. Throws Error(kUnsupported) when rows is not a multiple of kRowGroup
// or cols is not a multiple of kBlock and of the type's block.
size_t packed_num_bytes(GgmlType type, int64_t rows, int64_t cols);

// Packs file rows [row0, row1) (multiples of kRowGroup) of a row-major matrix whose row 0 stands at `src`
// into the packed matrix that starts at `dst`. Ranges may run on different threads.
void pack_rows(GgmlType type, const std::byte* src, int64_t cols, int64_t row0, int64_t row1, std::byte* dst);

// Exact dequantisation of one file row ([cols], file layout) and of one packed row; both give the same bits.
void dequantize_row(GgmlType type, const std::byte* src, int64_t cols, float* out);
void unpack_row(const PackedMatrix& w, int64_t row, float* out);

// out[(t - t0) * out_stride + (n - row0)] for n in [row0, row1) and t in [t0, t1). row0 and row1 are multiples
// of kRowGroup, t0 of kTileTokens. Reads acts.f32 for float kinds, acts.q8 for the others.
// No allocation, no lock; any ranges may run at the same time.
using MatmulFn = void (*)(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0,
                          int32_t t1, float* out, int64_t out_stride);

}  // namespace plait
