// Sixteen lanes at once, as two F8: what each lane holds is the same for every ISA. Included like
// lanes-inl.h.
//
// PLAIT_LANES_VNNI, besides PLAIT_LANES_AVX2: one register of AVX-512, which halves the instructions of a
// loop (and a factor comes from memory with the product).
#pragma once

#include "kernels/lanes/lanes-inl.h"

namespace plait::PLAIT_LANES {

#if defined(PLAIT_LANES_VNNI)

using F8x2 = __m512;
inline constexpr bool kHasDoubleRegisters = true;

inline F8x2 load2(const float* p) { return _mm512_loadu_ps(p); }
// (GCC 12 takes what a conversion without a mask leaves undefined for an error.)
inline F8x2 load2(const uint16_t* half) {
  return _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half)));
}
inline void store2(float* p, F8x2 a) { _mm512_storeu_ps(p, a); }
inline F8x2 set1x2(float a) { return _mm512_set1_ps(a); }
inline F8x2 mul(F8x2 a, F8x2 b) { return _mm512_mul_ps(a, b); }
inline F8x2 fma(F8x2 a, F8x2 b, F8x2 c) { return _mm512_fmadd_ps(a, b, c); }

#else

struct F8x2 {
  F8 lo, hi;
};
inline constexpr bool kHasDoubleRegisters = false;

inline F8x2 load2(const float* p) { return {load(p), load(p + 8)}; }
inline F8x2 load2(const uint16_t* half) { return {load(half), load(half + 8)}; }
inline void store2(float* p, F8x2 a) {
  store(p, a.lo);
  store(p + 8, a.hi);
}
inline F8x2 set1x2(float a) { return {set1(a), set1(a)}; }
inline F8x2 mul(F8x2 a, F8x2 b) { return {mul(a.lo, b.lo), mul(a.hi, b.hi)}; }
inline F8x2 fma(F8x2 a, F8x2 b, F8x2 c) { return {fma(a.lo, b.lo, c.lo), fma(a.hi, b.hi, c.hi)}; }

#endif

}  // namespace plait::PLAIT_LANES
