#include "kernels/matmul/avx2_float.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "kernels/matmul/packed_layout.h"

#define PLAIT_AVX2 __attribute__((target("avx2,fma,f16c")))
#define PLAIT_AVX2_INLINE __attribute__((target("avx2,fma,f16c"), always_inline)) inline

namespace plait::avx2 {
namespace {

template <PackedKind K>
PLAIT_AVX2_INLINE __m256 load_8_weights(const std::byte* p) {
  if constexpr (K == PackedKind::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if constexpr (K == PackedKind::kF16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// Each lane is one chain of dependent adds, so at least 8 accumulators must run side by side.
template <PackedKind K, int kTokens, int kGroups>
PLAIT_AVX2 void multiply(const std::byte* groups, size_t group_step, int64_t cols, const float* x, float* out,
                         int64_t out_stride) {
  constexpr int64_t kStep = kRowGroup * float_bytes(K);
  __m256 acc[kGroups][kTokens];
  for (int g = 0; g < kGroups; ++g) {
    for (int t = 0; t < kTokens; ++t) acc[g][t] = _mm256_setzero_ps();
  }
  for (int64_t k = 0; k < cols; ++k) {
    for (int g = 0; g < kGroups; ++g) {
      const __m256 w = load_8_weights<K>(groups + static_cast<size_t>(g) * group_step + k * kStep);
      for (int t = 0; t < kTokens; ++t) {
        acc[g][t] = _mm256_fmadd_ps(w, _mm256_broadcast_ss(x + t * cols + k), acc[g][t]);
      }
    }
  }
  for (int g = 0; g < kGroups; ++g) {
    for (int t = 0; t < kTokens; ++t) _mm256_storeu_ps(out + t * out_stride + g * kRowGroup, acc[g][t]);
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
  const size_t step = group_bytes(K, w.cols);
  constexpr size_t kPanelBytes = size_t{256} << 10;  // weights that stay cached while all tokens pass
  const auto panel = static_cast<int32_t>(kPanelBytes / step < 8 ? 8 : kPanelBytes / step);
  const int32_t group1 = row1 / kRowGroup;
  for (int32_t group = row0 / kRowGroup; group < group1; group += panel) {
    const int32_t num_groups = group1 - group < panel ? group1 - group : panel;
    const std::byte* groups = w.data + static_cast<size_t>(group) * step;
    int32_t t = t0;
    while (t < t1) {
      const float* x = acts.f32 + static_cast<int64_t>(t) * acts.cols;
      float* to = out + (t - t0) * out_stride + group * kRowGroup - row0;
      if (t1 - t >= 4) {
        multiply_rows<K, 4, 2>(groups, num_groups, w.cols, x, to, out_stride);
        t += 4;
      } else if (t1 - t >= 2) {
        multiply_rows<K, 2, 4>(groups, num_groups, w.cols, x, to, out_stride);
        t += 2;
      } else {
        multiply_rows<K, 1, 8>(groups, num_groups, w.cols, x, to, out_stride);
        t += 1;
      }
    }
  }
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

}  // namespace plait::avx2

#endif
