// Matrix product of packed weights with quantised activations: out[t][n] = sum_k act[t][k] * w[n][k].
// Knows: packed layouts. Must not know: pools, plans, models.
//
// Arithmetic, per output and block of 32 columns in rising order, from acc = 0 (all float32, fused where it
// says fma; isum and imin are exact integer sums; a = activation scale, asum = activation sum, see acts.h):
//   no minimum         acc = fma(d * a, isum, acc)         with isum = sum code * q,            d = f16 scale
//   offset or minimum  then acc = fma(m, asum, acc)        with m = -8 * d, -16 * d or the f16 minimum
//   kU6                the same with isum = sum 4 * h * q, m = -126.5 * d
//   kU4K, kU5K         the same with d = d * scale, m = -(min_d * min);  kCode4K: d = d * scale
//   kU3K, kU6K         acc = fma(d * a, isum, acc)         with isum = sum scale * (code - offset) * q
//   kU2K               acc = fma(d * a, isum, acc), then acc = fma(-min_d * a, imin, acc)
//                                                          with isum = sum scale * code * q, imin = sum min *
//                                                          q
// Float kinds: acc = fma(w[k], x[k], acc) column by column.
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

// How the codes of a file type are stored and added up (packed_layout.h draws the bytes). No kind takes more
// room per weight than the file, but for a few scale bytes of the K types.
enum class PackedKind : uint8_t {
  kU4,       // 4-bit code - 8, f16 scale per 32:                          Q4_0
  kU4Min,    // 4-bit code, f16 scale and minimum per 32:                  Q4_1
  kU5,       // 5-bit code - 16, f16 scale per 32:                         Q5_0
  kU5Min,    // 5-bit code, f16 scale and minimum per 32:                  Q5_1
  kS8,       // 8-bit signed, f16 scale per 32:                            Q8_0
  kCode4,    // 4-bit index of a table of 8-bit values, f16 scale per 32:  IQ4_NL
  kU2K,      // 2-bit code, 4-bit scale and minimum per 16, f16 per 256:   Q2_K
  kU3K,      // 3-bit code - 4, 6-bit scale per 16, f16 per 256:           Q3_K
  kU4K,      // 4-bit code, 6-bit scale and minimum per 32, f16 per 256:   Q4_K
  kU5K,      // 5-bit code, the same:                                      Q5_K
  kU6K,      // 6-bit code - 32, 8-bit scale per 16, f16 per 256:          Q6_K
  kCode4K,   // as kCode4 with 6-bit scale per 32 and f16 per 256:         IQ4_XS
  kS8Apart,  // as kS8, the lower 2 bits of the codes apart from the rest:  Q8_0 that is searched (coarse.h)
  kU6,       // the rest of kS8Apart, each code as if its lower bits were 1.5
  kF16,
  kBF16,
  kF32,
};

struct PackedMatrix {
  const std::byte* data = nullptr;  // 64-byte aligned
  size_t num_bytes = 0;
  int32_t rows = 0;  // a multiple of kRowGroup
  int32_t cols = 0;  // a multiple of kBlock
  PackedKind kind = PackedKind::kF32;
  const std::byte* low =
      nullptr;  // kS8Apart: the lower bits (packed_layout.h); num_bytes does not count them
};

// Of a type that has several kinds, the plain one.
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

// out[(t - t0) * out_stride + (n - row0)] for n in [row0, row1) and t in [t0, t1). row0 and row1 are
// multiples of kRowGroup, t0 of kTileTokens. Reads acts.f32 for float kinds, acts.q8 for the others. No
// allocation, no lock; any ranges may run at the same time.
using MatmulFn = void (*)(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0,
                          int32_t t1, float* out, int64_t out_stride);

}  // namespace plait
