#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands inside its own AVX-512 intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include "bench/mac_loops.h"

#define PLAIT_ISA avx512
#define PLAIT_FN __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")))
#define PLAIT_INLINE \
  __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq"), always_inline)) inline

namespace plait::avx512 {
namespace {

struct Vec {
  static constexpr int kLanes = 16;
  using Int = __m512i;
  using Float = __m512;
  static PLAIT_INLINE Int zero() { return _mm512_setzero_si512(); }
  static PLAIT_INLINE Float zero_float() { return _mm512_setzero_ps(); }
  static PLAIT_INLINE Int ones_int8() { return _mm512_set1_epi8(1); }
  static PLAIT_INLINE Int ones_int16() { return _mm512_set1_epi16(1); }
  static PLAIT_INLINE Float one_float() { return _mm512_set1_ps(1.0F); }
  static PLAIT_INLINE Int to_int(Float a) { return _mm512_cvtps_epi32(a); }
  static PLAIT_INLINE void store(int32_t* p, Int a) { _mm512_store_si512(p, a); }
  static PLAIT_INLINE Int add_int16(Int a, Int b) { return _mm512_add_epi16(a, b); }
  static PLAIT_INLINE Int add_int32(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static PLAIT_INLINE Int dot_bytes(Int codes, Int q) { return _mm512_maddubs_epi16(codes, q); }
  static PLAIT_INLINE Int dot_int16(Int a, Int b) { return _mm512_madd_epi16(a, b); }
  static PLAIT_INLINE Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace
}  // namespace plait::avx512

#include "bench/mac_loops-inl.h"

namespace plait::avx512vnni {

__attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))) uint64_t
mac_loop_int8(int64_t rounds) {
  constexpr int kChains = 10;
  __m512i codes = _mm512_set1_epi8(1);
  const __m512i q = _mm512_set1_epi8(1);
  __m512i sums[kChains];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t r = 0; r < rounds; ++r) {
    for (__m512i& sum : sums) {
      PLAIT_PIN(codes);
      sum = _mm512_dpbusd_epi32(sum, codes, q);
    }
  }
  uint64_t total = 0;
  for (const __m512i& sum : sums) total += avx512::count_lanes(sum);
  return total;
}

}  // namespace plait::avx512vnni
#endif
