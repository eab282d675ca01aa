// Exact products of int16 and int8, two per lane, for kernels with one body for all ISAs. Included like
// lanes-inl.h. Integers: every ISA gives the same bits as long as sums stay inside int32.
//
// PLAIT_LANES_VNNI, besides PLAIT_LANES_AVX2: the CPU has AVX-512 VNNI, which multiplies and adds in one
// instruction, and twice the registers.
//
// The plain form uses only loads and stores of lanes-inl.h, so that any F8 will do.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/lanes/lanes-inl.h"

#if defined(PLAIT_LANES_AVX2)

namespace plait::PLAIT_LANES {

using P16 = __m256i;    // eight lanes of two int16
using Sum32 = __m256i;  // eight int32 lanes

inline Sum32 zero_sum() { return _mm256_setzero_si256(); }
// 16 bytes, lane i: p[2 i] and p[2 i + 1].
inline P16 load_pairs(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// p[0] and p[1] in every lane.
inline P16 set1_pair(const int16_t* p) {
  int32_t both;
  std::memcpy(&both, p, 4);
  return _mm256_set1_epi32(both);
}
// sum + a.first * b.first + a.second * b.second
inline Sum32 add_products(P16 a, P16 b, Sum32 sum) {
#if defined(PLAIT_LANES_VNNI)
  return _mm256_dpwssd_epi32(sum, a, b);
#else
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
}
// Keeps `sum` in its register across the turns of a loop; GCC copies it to and fro otherwise.
inline void pin(Sum32& sum) { asm volatile("" : "+v"(sum)); }
inline Sum32 add_sums(Sum32 a, Sum32 b) { return _mm256_add_epi32(a, b); }
inline F8 to_float(Sum32 a) { return _mm256_cvtepi32_ps(a); }
// Rounded to nearest even; what no int16 holds, NaN as well, becomes one of the two ends.
inline void store_rounded(int16_t* p, F8 a) {
  const __m256i whole = _mm256_cvtps_epi32(a);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}

}  // namespace plait::PLAIT_LANES

#else

namespace plait::PLAIT_LANES {

struct P16 {
  int16_t v[16];
};
struct Sum32 {
  int32_t v[8];
};

inline Sum32 zero_sum() { return {}; }
inline P16 load_pairs(const int8_t* p) {
  P16 out;
  for (int i = 0; i < 16; ++i) out.v[i] = p[i];
  return out;
}
inline P16 set1_pair(const int16_t* p) {
  P16 out;
  for (int i = 0; i < 16; ++i) out.v[i] = p[i % 2];
  return out;
}
inline Sum32 add_products(P16 a, P16 b, Sum32 sum) {
  for (int i = 0; i < 8; ++i) sum.v[i] += a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
  return sum;
}
inline void pin(Sum32&) {}
inline Sum32 add_sums(Sum32 a, Sum32 b) {
  for (int i = 0; i < 8; ++i) a.v[i] += b.v[i];
  return a;
}
inline F8 to_float(Sum32 a) {
  float out[8];
  for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(a.v[i]);
  return load(out);
}
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
