#if defined(__x86_64__)
#include <immintrin.h>

#include "bench/mac_loops.h"

#define PLAIT_ISA avx2
#define PLAIT_FN __attribute__((target("avx2,fma")))
#define PLAIT_INLINE __attribute__((target("avx2,fma"), always_inline)) inline

namespace plait::avx2 {
namespace {

struct Vec {
  static constexpr int kLanes = 8;
  using Int = __m256i;
  using Float = __m256;
  static PLAIT_INLINE Int zero() { return _mm256_setzero_si256(); }
  static PLAIT_INLINE Float zero_float() { return _mm256_setzero_ps(); }
  static PLAIT_INLINE Int ones_int8() { return _mm256_set1_epi8(1); }
  static PLAIT_INLINE Int ones_int16() { return _mm256_set1_epi16(1); }
  static PLAIT_INLINE Float one_float() { return _mm256_set1_ps(1.0F); }
  static PLAIT_INLINE Int to_int(Float a) { return _mm256_cvtps_epi32(a); }
  static PLAIT_INLINE void store(int32_t* p, Int a) { _mm256_store_si256(reinterpret_cast<Int*>(p), a); }
  static PLAIT_INLINE Int add_int16(Int a, Int b) { return _mm256_add_epi16(a, b); }
  static PLAIT_INLINE Int add_int32(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static PLAIT_INLINE Int dot_bytes(Int codes, Int q) { return _mm256_maddubs_epi16(codes, q); }
  static PLAIT_INLINE Int dot_int16(Int a, Int b) { return _mm256_madd_epi16(a, b); }
  static PLAIT_INLINE Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
};

}  // namespace
}  // namespace plait::avx2

#include "bench/mac_loops-inl.h"
#endif
