#include "kernels/quantize/quantize.h"

#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#define PLAIT_AVX2 __attribute__((target("avx2,fma,f16c")))
#endif

namespace plait {
namespace {

constexpr uint32_t kAbsMask = 0x7fffffffU;
constexpr uint32_t kInfBits = 0x7f800000U;

// Where one (token, block) pair is stored.
struct Slot {
  std::byte* q;
  std::byte* scale;
  std::byte* sum;
  std::byte* half_sum;
};

Slot slot_of(const Acts& acts, int32_t t, int32_t block) {
  const int32_t tile = t / kTileTokens;
  const auto i = static_cast<size_t>(t % kTileTokens);
  const auto r = static_cast<size_t>(tile_tokens(acts.num_tokens, tile));
  std::byte* record = acts.q8 + tile_offset(tile, acts.cols) + static_cast<size_t>(block) * r * kActBytes;
  std::byte* meta = record + r * kBlock;
  return {record + i * kBlock, meta + i * 4, meta + r * 4 + i * 4, meta + r * 8 + i * 4};
}

// `max_bits` are the bits of max|x|: as integers, absolute values order like the numbers, infinities and NaNs
// above all.
float block_scale(uint32_t max_bits) {
  if (max_bits >= kInfBits) return std::numeric_limits<float>::quiet_NaN();
  float max_abs;
  std::memcpy(&max_abs, &max_bits, sizeof max_abs);
  return max_abs < kMinActMax ? 0.0F : max_abs / 127.0F;
}

void write_meta(const Slot& slot, float scale, int32_t sum0, int32_t sum1) {
  const float sum = scale * static_cast<float>(sum0 + sum1);
  const int16_t halves[2] = {static_cast<int16_t>(sum0), static_cast<int16_t>(sum1)};
  std::memcpy(slot.scale, &scale, sizeof scale);
  std::memcpy(slot.sum, &sum, sizeof sum);
  std::memcpy(slot.half_sum, halves, sizeof halves);
}

void write_empty(const Slot& slot, float scale) {
  std::memset(slot.q, 0, kBlock);
  write_meta(slot, scale, 0, 0);
}

void copy_f32(const float* x, int32_t t, int32_t col0, int32_t col1, const Acts& acts) {
  std::memcpy(acts.f32 + static_cast<int64_t>(t) * acts.cols + col0, x,
              static_cast<size_t>(col1 - col0) * sizeof(float));
}

void quantize_scalar(const float* x, int32_t t, int32_t col0, int32_t col1, const Acts& acts) {
  if (acts.f32 != nullptr) copy_f32(x, t, col0, col1, acts);
  if (acts.q8 == nullptr) return;
  for (int32_t col = col0; col < col1; col += kBlock, x += kBlock) {
    const Slot slot = slot_of(acts, t, col / kBlock);
    uint32_t max_bits = 0;
    for (int32_t k = 0; k < kBlock; ++k) {
      uint32_t bits;
      std::memcpy(&bits, x + k, sizeof bits);
      bits &= kAbsMask;
      max_bits = bits > max_bits ? bits : max_bits;
    }
    const float scale = block_scale(max_bits);
    if (!(scale > 0.0F)) {
      write_empty(slot, scale);
      continue;
    }
    const float inverse = 1.0F / scale;
    int8_t q[kBlock];
    int32_t sums[2] = {0, 0};
    for (int32_t k = 0; k < kBlock; ++k) {
      const auto rounded = static_cast<int32_t>(std::nearbyint(x[k] * inverse));
      q[k] = static_cast<int8_t>(rounded);
      sums[k / 16] += rounded;
    }
    std::memcpy(slot.q, q, sizeof q);
    write_meta(slot, scale, sums[0], sums[1]);
  }
}

#if defined(__x86_64__)

PLAIT_AVX2 inline uint32_t max_of_lanes(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

PLAIT_AVX2 inline int32_t sum_of_bytes(__m128i q) {
  const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), q);
  __m128i s = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

PLAIT_AVX2 void quantize_avx2(const float* x, int32_t t, int32_t col0, int32_t col1, const Acts& acts) {
  if (acts.f32 != nullptr) copy_f32(x, t, col0, col1, acts);
  if (acts.q8 == nullptr) return;
  const __m256i abs_mask = _mm256_set1_epi32(static_cast<int32_t>(kAbsMask));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int32_t col = col0; col < col1; col += kBlock, x += kBlock) {
    const Slot slot = slot_of(acts, t, col / kBlock);
    const __m256 x0 = _mm256_loadu_ps(x);
    const __m256 x1 = _mm256_loadu_ps(x + 8);
    const __m256 x2 = _mm256_loadu_ps(x + 16);
    const __m256 x3 = _mm256_loadu_ps(x + 24);
    const __m256i m01 = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(x0), abs_mask),
                                         _mm256_and_si256(_mm256_castps_si256(x1), abs_mask));
    const __m256i m23 = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(x2), abs_mask),
                                         _mm256_and_si256(_mm256_castps_si256(x3), abs_mask));
    const float scale = block_scale(max_of_lanes(_mm256_max_epi32(m01, m23)));
    if (!(scale > 0.0F)) {
      write_empty(slot, scale);
      continue;
    }
    const __m256 inverse = _mm256_set1_ps(1.0F / scale);
    // The conversion rounds half to even, as nearbyint does.
    const __m256i q01 = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x0, inverse)),
                                           _mm256_cvtps_epi32(_mm256_mul_ps(x1, inverse)));
    const __m256i q23 = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x2, inverse)),
                                           _mm256_cvtps_epi32(_mm256_mul_ps(x3, inverse)));
    const __m256i q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(q01, q23), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(slot.q), q);
    write_meta(slot, scale, sum_of_bytes(_mm256_castsi256_si128(q)),
               sum_of_bytes(_mm256_extracti128_si256(q, 1)));
  }
}

#endif

}  // namespace

QuantizeFn quantize_kernel(Isa isa) {
#if defined(__x86_64__)
  if (is_avx2_or_wider(isa)) return quantize_avx2;
#endif
  (void)isa;
  return quantize_scalar;
}

}  // namespace plait
