// Eight float32 lanes, for kernels with one body for all ISAs. Included once per translation unit, inside the
// target region, with PLAIT_LANES set to the namespace: scalar, avx2 or neon.
//
// INVARIANT: every operation gives the same bits in every ISA: they are the IEEE ones, fused only where the
// name says so, and reductions over lanes are a fixed tree.
#pragma once

#include "base/float16.h"
#include "kernels/lanes/target.h"

#if defined(PLAIT_LANES_AVX2)

namespace plait::PLAIT_LANES {

using F8 = __m256;

inline F8 load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F8 a) { _mm256_storeu_ps(p, a); }
inline F8 set1(float a) { return _mm256_set1_ps(a); }
inline F8 load(const uint16_t* half) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half)));
}
inline void store(uint16_t* half, F8 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(half), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
inline F8 add(F8 a, F8 b) { return _mm256_add_ps(a, b); }
inline F8 sub(F8 a, F8 b) { return _mm256_sub_ps(a, b); }
inline F8 mul(F8 a, F8 b) { return _mm256_mul_ps(a, b); }
inline F8 div(F8 a, F8 b) { return _mm256_div_ps(a, b); }
inline F8 fma(F8 a, F8 b, F8 c) { return _mm256_fmadd_ps(a, b, c); }
inline F8 max(F8 a, F8 b) { return _mm256_max_ps(a, b); }  // a > b ? a : b
inline F8 if_less(F8 a, F8 b, F8 yes, F8 no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
inline F8 abs(F8 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), a); }
inline F8 copy_sign(F8 magnitude, F8 sign) {
  const F8 mask = _mm256_set1_ps(-0.0F);
  return _mm256_or_ps(_mm256_andnot_ps(mask, magnitude), _mm256_and_ps(mask, sign));
}
// 2^n for n = a's low mantissa bits as a signed number: a is n + 1.5 * 2^23.
inline F8 exp2_of_low_bits(F8 a) {
  const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(a), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3F800000)));
}
inline F8 lane_indices() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
inline float sum_lanes(F8 a) {
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float max_lanes(F8 a) {
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

}  // namespace plait::PLAIT_LANES

#elif defined(PLAIT_LANES_NEON)

namespace plait::PLAIT_LANES {

struct F8 {
  float32x4_t lo;
  float32x4_t hi;
};

inline float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline float32x2_t larger(float32x2_t a, float32x2_t b) { return vbsl_f32(vcgt_f32(a, b), a, b); }

inline F8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float* p, F8 a) {
  vst1q_f32(p, a.lo);
  vst1q_f32(p + 4, a.hi);
}
inline F8 set1(float a) { return {vdupq_n_f32(a), vdupq_n_f32(a)}; }
inline F8 load(const uint16_t* half) {
  const float16x8_t a = vreinterpretq_f16_u16(vld1q_u16(half));
  return {vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a)};
}
inline void store(uint16_t* half, F8 a) {  // rounds as FPCR says: to nearest even, as nobody changes it
  vst1q_u16(half, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.lo), a.hi)));
}
inline F8 add(F8 a, F8 b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
inline F8 sub(F8 a, F8 b) { return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
inline F8 mul(F8 a, F8 b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
inline F8 div(F8 a, F8 b) { return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }
// Not vmaxq_f32, which returns NaN when either is.
inline F8 max(F8 a, F8 b) { return {larger(a.lo, b.lo), larger(a.hi, b.hi)}; }
inline F8 if_less(F8 a, F8 b, F8 yes, F8 no) {
  return {vbslq_f32(vcltq_f32(a.lo, b.lo), yes.lo, no.lo), vbslq_f32(vcltq_f32(a.hi, b.hi), yes.hi, no.hi)};
}
inline F8 abs(F8 a) { return {vabsq_f32(a.lo), vabsq_f32(a.hi)}; }
inline F8 copy_sign(F8 magnitude, F8 sign) {
  const uint32x4_t mask = vdupq_n_u32(0x80000000U);
  return {vbslq_f32(mask, sign.lo, magnitude.lo), vbslq_f32(mask, sign.hi, magnitude.hi)};
}
inline float32x4_t exp2_of_low_bits(float32x4_t a) {
  const int32x4_t bits = vshlq_n_s32(vreinterpretq_s32_f32(a), 23);
  return vreinterpretq_f32_s32(vaddq_s32(bits, vdupq_n_s32(0x3F800000)));
}
inline F8 exp2_of_low_bits(F8 a) { return {exp2_of_low_bits(a.lo), exp2_of_low_bits(a.hi)}; }
inline F8 lane_indices() {
  constexpr float kIndices[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  return load(kIndices);
}
inline float sum_lanes(F8 a) {
  const float32x4_t b = vaddq_f32(a.lo, a.hi);
  const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
  return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}
inline float max_lanes(F8 a) {
  const float32x4_t b = larger(a.lo, a.hi);
  const float32x2_t c = larger(vget_low_f32(b), vget_high_f32(b));
  return vget_lane_f32(c, 0) > vget_lane_f32(c, 1) ? vget_lane_f32(c, 0) : vget_lane_f32(c, 1);
}

}  // namespace plait::PLAIT_LANES

#else

#include <bit>
#include <cmath>

namespace plait::PLAIT_LANES {

struct F8 {
  float v[8];
};

template <typename Op>
inline F8 map(Op op) {
  F8 out;
  for (int i = 0; i < 8; ++i) out.v[i] = op(i);
  return out;
}

inline F8 load(const float* p) {
  return map([&](int i) { return p[i]; });
}
inline void store(float* p, F8 a) {
  for (int i = 0; i < 8; ++i) p[i] = a.v[i];
}
inline F8 set1(float a) {
  return map([&](int) { return a; });
}
inline F8 load(const uint16_t* half) {
  return map([&](int i) { return half_to_float(half[i]); });
}
inline void store(uint16_t* half, F8 a) {
  for (int i = 0; i < 8; ++i) half[i] = float_to_half(a.v[i]);
}
inline F8 add(F8 a, F8 b) {
  return map([&](int i) { return a.v[i] + b.v[i]; });
}
inline F8 sub(F8 a, F8 b) {
  return map([&](int i) { return a.v[i] - b.v[i]; });
}
inline F8 mul(F8 a, F8 b) {
  return map([&](int i) { return a.v[i] * b.v[i]; });
}
inline F8 div(F8 a, F8 b) {
  return map([&](int i) { return a.v[i] / b.v[i]; });
}
inline F8 fma(F8 a, F8 b, F8 c) {
  return map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline F8 max(F8 a, F8 b) {
  return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F8 if_less(F8 a, F8 b, F8 yes, F8 no) {
  return map([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
}
inline F8 abs(F8 a) {
  return map([&](int i) { return std::fabs(a.v[i]); });
}
inline F8 copy_sign(F8 magnitude, F8 sign) {
  return map([&](int i) { return std::copysign(magnitude.v[i], sign.v[i]); });
}
inline F8 exp2_of_low_bits(F8 a) {
  return map(
      [&](int i) { return std::bit_cast<float>((std::bit_cast<uint32_t>(a.v[i]) << 23) + 0x3F800000U); });
}
inline F8 lane_indices() {
  return map([](int i) { return static_cast<float>(i); });
}
inline float sum_lanes(F8 a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
inline float max_lanes(F8 a) {
  const auto larger = [](float x, float y) { return x > y ? x : y; };
  float b[4];
  for (int i = 0; i < 4; ++i) b[i] = larger(a.v[i], a.v[i + 4]);
  return larger(larger(b[0], b[2]), larger(b[1], b[3]));
}

}  // namespace plait::PLAIT_LANES

#endif
