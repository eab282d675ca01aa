// The body of the rotary embedding for one ISA; see lanes-inl.h for how it is included.
// For each pair: a' = fma(a, cos, -(b sin)), b' = fma(b, cos, a sin).
#pragma once

#include <cmath>

#include "kernels/lanes/lanes-inl.h"
#include "kernels/rope/rope.h"

namespace plait::PLAIT_LANES {

inline void rotate_pair(float& a, float& b, float cos, float sin) {
  const float x = a;
  const float y = b;
  a = std::fma(x, cos, -(y * sin));
  b = std::fma(y, cos, x * sin);
}

inline void rope_half(float* x, int32_t half, const float* cos, const float* sin) {
  int32_t i = 0;
  for (; i + 8 <= half; i += 8) {
    const F8 a = load(x + i);
    const F8 b = load(x + half + i);
    const F8 c = load(cos + i);
    const F8 s = load(sin + i);
    store(x + i, fma(a, c, sub(set1(-0.0F), mul(b, s))));
    store(x + half + i, fma(b, c, mul(a, s)));
  }
  for (; i < half; ++i) rotate_pair(x[i], x[half + i], cos[i], sin[i]);
}

inline void rope_interleaved(float* x, int32_t half, const float* cos, const float* sin) {
  int32_t i = 0;
#if defined(PLAIT_LANES_AVX2)
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  for (; i + 4 <= half; i += 4) {
    const __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos + i)), twice);
    const __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin + i)), twice);
    const __m256 pairs = _mm256_loadu_ps(x + 2 * i);
    const __m256 swapped = _mm256_permute_ps(pairs, 0xB1);
    _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(pairs, c, _mm256_mul_ps(swapped, s)));
  }
#elif defined(PLAIT_LANES_NEON)
  for (; i + 4 <= half; i += 4) {
    const float32x4_t c = vld1q_f32(cos + i);
    const float32x4_t s = vld1q_f32(sin + i);
    const float32x4x2_t pairs = vld2q_f32(x + 2 * i);
    float32x4x2_t turned;
    turned.val[0] = vfmaq_f32(vnegq_f32(vmulq_f32(pairs.val[1], s)), pairs.val[0], c);
    turned.val[1] = vfmaq_f32(vmulq_f32(pairs.val[0], s), pairs.val[1], c);
    vst2q_f32(x + 2 * i, turned);
  }
#endif
  for (; i < half; ++i) rotate_pair(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
}

void rope(float* x, int32_t rot_dim, const float* cos, const float* sin, RopeStyle style) {
  if (style == RopeStyle::kHalf) rope_half(x, rot_dim / 2, cos, sin);
  if (style == RopeStyle::kInterleaved) rope_interleaved(x, rot_dim / 2, cos, sin);
}

}  // namespace plait::PLAIT_LANES
