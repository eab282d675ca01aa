#include "kernels/matmul/neon_float.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include "kernels/matmul/packed_layout.h"
#include "kernels/matmul/walk.h"

// Before a short loop over an array of sums. Such loops are unrolled anyway, but without the word GCC does it
// so late that the arrays stay in memory and every sum is stored in every round.
#if defined(__clang__)
#define PLAIT_UNROLL
#else
#define PLAIT_UNROLL _Pragma("GCC unroll 8")
#endif

namespace plait::neon {
namespace {

struct Weights {  // one column of 8 rows
  float32x4_t lo;
  float32x4_t hi;
};

template <PackedKind K>
inline Weights load_weights(const std::byte* p) {
  if constexpr (K == PackedKind::kF32) {
    const auto* floats = reinterpret_cast<const float*>(p);
    return {vld1q_f32(floats), vld1q_f32(floats + 4)};
  }
  const uint16x8_t bits = vld1q_u16(reinterpret_cast<const uint16_t*>(p));
  if constexpr (K == PackedKind::kF16) {
    const float16x8_t halves = vreinterpretq_f16_u16(bits);
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
  }
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
          vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16))};
}

// Column k + kI, where x holds columns k .. k + 3 of each token.
template <PackedKind K, int kTokens, int kGroups, int kI>
inline void add_column(const std::byte* column, size_t group_step, const float32x4_t (&x)[kTokens],
                       float32x4_t (&acc)[kGroups][kTokens][2]) {
  PLAIT_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    const Weights w = load_weights<K>(column + static_cast<size_t>(g) * group_step +
                                      static_cast<size_t>(kI) * kRowGroup * float_bytes(K));
    PLAIT_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      acc[g][t][0] = vfmaq_laneq_f32(acc[g][t][0], w.lo, x[t], kI);
      acc[g][t][1] = vfmaq_laneq_f32(acc[g][t][1], w.hi, x[t], kI);
    }
  }
}

// Each lane is one chain of dependent adds: 16 accumulators hide its latency and leave registers for the
// rest.
template <PackedKind K, int kTokens, int kGroups>
void multiply(const std::byte* groups, size_t group_step, int64_t cols, const float* x, float* out,
              int64_t out_stride) {
  static_assert(kBlock % 4 == 0);
  constexpr int64_t kStep = kRowGroup * float_bytes(K);
  float32x4_t acc[kGroups][kTokens][2];
  PLAIT_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    PLAIT_UNROLL
    for (int t = 0; t < kTokens; ++t) acc[g][t][0] = acc[g][t][1] = vdupq_n_f32(0.0F);
  }
  for (int64_t k = 0; k < cols; k += 4) {
    float32x4_t xs[kTokens];
    PLAIT_UNROLL
    for (int t = 0; t < kTokens; ++t) xs[t] = vld1q_f32(x + t * cols + k);
    const std::byte* column = groups + k * kStep;
    add_column<K, kTokens, kGroups, 0>(column, group_step, xs, acc);
    add_column<K, kTokens, kGroups, 1>(column, group_step, xs, acc);
    add_column<K, kTokens, kGroups, 2>(column, group_step, xs, acc);
    add_column<K, kTokens, kGroups, 3>(column, group_step, xs, acc);
  }
  PLAIT_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    PLAIT_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      vst1q_f32(out + t * out_stride + g * kRowGroup, acc[g][t][0]);
      vst1q_f32(out + t * out_stride + g * kRowGroup + 4, acc[g][t][1]);
    }
  }
}

template <PackedKind K, int kTokens, int kGroups>
void multiply_rows(const std::byte* groups, int32_t num_groups, int64_t cols, const float* x, float* out,
                   int64_t out_stride) {
  const size_t step = group_bytes(K, cols);
  int32_t g = 0;
  for (; g + kGroups <= num_groups; g += kGroups) {
    multiply<K, kTokens, kGroups>(groups + static_cast<size_t>(g) * step, step, cols, x, out + g * kRowGroup,
                                  out_stride);
  }
  for (; g < num_groups; ++g) {
    multiply<K, kTokens, 1>(groups + static_cast<size_t>(g) * step, step, cols, x, out + g * kRowGroup,
                            out_stride);
  }
}

template <PackedKind K>
void multiply_all(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
                  float* out, int64_t out_stride) {
  walk_floats(w, acts, row0, row1, t0, t1, out, out_stride,
              [&](auto num_tokens, const std::byte* groups, int32_t num_groups, const float* x, float* to) {
                constexpr int kTokens = decltype(num_tokens)::value;
                multiply_rows<K, kTokens, 8 / kTokens>(groups, num_groups, w.cols, x, to, out_stride);
              });
}

}  // namespace

void matmul_float(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
                  float* out, int64_t out_stride) {
  switch (w.kind) {
    case PackedKind::kF16:
      return multiply_all<PackedKind::kF16>(w, acts, row0, row1, t0, t1, out, out_stride);
    case PackedKind::kBF16:
      return multiply_all<PackedKind::kBF16>(w, acts, row0, row1, t0, t1, out, out_stride);
    default:
      return multiply_all<PackedKind::kF32>(w, acts, row0, row1, t0, t1, out, out_stride);
  }
}

}  // namespace plait::neon

#endif
