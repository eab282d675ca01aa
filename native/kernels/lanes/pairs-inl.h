// Exact products of int16 and int8, two per lane, for kernels with one body for all ISAs. Included like
// lanes-inl.h. Integers: every ISA gives the same bits as long as sums stay inside int32.
//
// PLAIT_LANES_VNNI, besides PLAIT_LANES_AVX2: the CPU has AVX-512 VNNI, which multiplies and adds in one
// instruction, sixteen lanes at once.
//
// The plain form uses only loads and stores of lanes-inl.h, so that any F8 will do.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/lanes/lanes-inl.h"

#if defined(PLAIT_LANES_AVX2)

namespace plait::PLAIT_LANES {

#if defined(PLAIT_LANES_VNNI)

using Pairs = __m512i;  // sixteen lanes of two int16
using Sum16 = __m512i;  // sixteen int32 lanes

inline Sum16 zero_sum() { return _mm512_setzero_si512(); }
// 32 bytes, lane i: p[2 i] and p[2 i + 1].
inline Pairs load_pairs(const int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// p[0] and p[1] in every lane.
inline Pairs set1_pair(const int16_t* p) {
  int32_t both;
  std::memcpy(&both, p, 4);
  return _mm512_set1_epi32(both);
}
// sum + a.first * b.first + a.second * b.second
inline Sum16 add_products(Pairs a, Pairs b, Sum16 sum) { return _mm512_dpwssd_epi32(sum, a, b); }
// Keeps `sum` in its register across the turns of a loop; GCC copies it to and fro otherwise.
inline void pin(Sum16& sum) { asm volatile("" : "+v"(sum)); }
// Lanes [0, 8) and [8, 16). (GCC 12 takes what an extraction without a mask leaves undefined for an error.)
inline F8 low_float(Sum16 a) { return _mm256_cvtepi32_ps(_mm512_maskz_extracti64x4_epi64(0xFF, a, 0)); }
inline F8 high_float(Sum16 a) { return _mm256_cvtepi32_ps(_mm512_maskz_extracti64x4_epi64(0xFF, a, 1)); }

#else

struct Pairs {
  __m256i lo, hi;
};
struct Sum16 {
  __m256i lo, hi;
};

inline Sum16 zero_sum() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Pairs load_pairs(const int8_t* p) {
  const auto* half = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(half)), _mm256_cvtepi8_epi16(_mm_loadu_si128(half + 1))};
}
inline Pairs set1_pair(const int16_t* p) {
  int32_t both;
  std::memcpy(&both, p, 4);
  return {_mm256_set1_epi32(both), _mm256_set1_epi32(both)};
}
inline Sum16 add_products(Pairs a, Pairs b, Sum16 sum) {
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
inline void pin(Sum16& sum) { asm volatile("" : "+v"(sum.lo), "+v"(sum.hi)); }
inline F8 low_float(Sum16 a) { return _mm256_cvtepi32_ps(a.lo); }
inline F8 high_float(Sum16 a) { return _mm256_cvtepi32_ps(a.hi); }

#endif

// Rounded to nearest even; what no int16 holds, NaN as well, becomes one of the two ends.
inline void store_rounded(int16_t* p, F8 a) {
  const __m256i whole = _mm256_cvtps_epi32(a);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}

}  // namespace plait::PLAIT_LANES

#else

namespace plait::PLAIT_LANES {

struct Pairs {
  int16_t v[32];
};
struct Sum16 {
  int32_t v[16];
};

inline Sum16 zero_sum() { return {}; }
inline Pairs load_pairs(const int8_t* p) {
  Pairs out;
  for (int i = 0; i < 32; ++i) out.v[i] = p[i];
  return out;
}
inline Pairs set1_pair(const int16_t* p) {
  Pairs out;
  for (int i = 0; i < 32; ++i) out.v[i] = p[i % 2];
  return out;
}
inline Sum16 add_products(Pairs a, Pairs b, Sum16 sum) {
  for (int i = 0; i < 16; ++i) sum.v[i] += a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
  return sum;
}
inline void pin(Sum16&) {}
inline F8 to_float(const int32_t* v) {
  float out[8];
  for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(v[i]);
  return load(out);
}
inline F8 low_float(Sum16 a) { return to_float(a.v); }
inline F8 high_float(Sum16 a) { return to_float(a.v + 8); }
inline void store_rounded(int16_t* p, F8 a) {
  float x[8];
  store(x, a);
  for (int i = 0; i < 8; ++i) {
    const float whole = std::nearbyint(x[i]);
    if (whole >= 32767.0F && whole < 0x1p31F) {
      p[i] = 32767;
    } else {
      p[i] = whole > -32768.0F && whole < 32767.0F ? static_cast<int16_t>(whole) : int16_t{-32768};
    }
  }
}

}  // namespace plait::PLAIT_LANES

#endif
