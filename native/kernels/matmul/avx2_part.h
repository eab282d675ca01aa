// AVX2 pieces: a part (8 rows x 32 columns) of each packed kind in registers, and its product with one token.
// Included by the AVX2 kernels only; every function carries the target itself, so no file needs -mavx2.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include "kernels/matmul/act_tile.h"
#include "kernels/matmul/packed_layout.h"

#define PLAIT_AVX2 __attribute__((target("avx2,fma,f16c")))
#define PLAIT_AVX2_INLINE __attribute__((target("avx2,fma,f16c"), always_inline)) inline

namespace plait::avx2 {

// Keeps `value` in a register and the compiler from moving work across: without it GCC hoists the loads of
// all tokens to the front and spills.
#define PLAIT_PIN(value) asm volatile("" : "+x"(value))

// 8 rows x 32 columns: code vectors by 4 columns, and what the kind needs beside them.
struct Part {
  __m256i w[8];  // codes, unsigned; signed for kS8 and kCode4*
  __m256 d;      // scale of the 32 columns
  __m256 m;      // minimum, added once per column
  __m256i s0;    // int16 scale of columns 0..15 (twice per row) and of 16..31
  __m256i s1;
  __m256i mins;  // int16 pairs per row that multiply the half sums
};

struct Head {
  __m256 d;
  __m256 min_d;
};

constexpr bool is_per_16(PackedKind kind) {
  return kind == PackedKind::kU2K || kind == PackedKind::kU3K || kind == PackedKind::kU6K;
}
constexpr bool is_signed(PackedKind kind) {
  return kind == PackedKind::kS8 || kind == PackedKind::kCode4 || kind == PackedKind::kCode4K;
}

PLAIT_AVX2_INLINE __m256i load_vector(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

PLAIT_AVX2_INLINE __m256 load_f16x8(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

PLAIT_AVX2_INLINE __m128i load_8_bytes(const std::byte* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

PLAIT_AVX2_INLINE __m256i broadcast_4_bytes(const std::byte* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return _mm256_set1_epi32(word);
}

PLAIT_AVX2_INLINE __m256 broadcast_float(const std::byte* p) {
  return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
}

template <int kShift>  // to the left when positive
PLAIT_AVX2_INLINE __m256i shift_bits(__m256i v) {
  if constexpr (kShift > 0) return _mm256_slli_epi16(v, kShift);
  if constexpr (kShift < 0) return _mm256_srli_epi16(v, -kShift);
  return v;
}

template <int kBits, int kTo, int kJ>  // the codes of column quad kJ, in bits [kTo, kTo + kBits)
PLAIT_AVX2_INLINE __m256i plane_codes(const __m256i* plane) {
  if constexpr (kBits == 8) return plane[kJ];
  constexpr int kMask = ((1 << kBits) - 1) << kTo;
  constexpr int kFrom = kJ / kBits * kBits;
  return _mm256_and_si256(shift_bits<kTo - kFrom>(plane[kJ % kBits]), _mm256_set1_epi8(kMask));
}

template <int kLow, int kHigh, int kJ>
PLAIT_AVX2_INLINE void load_codes_from(const __m256i* low, const __m256i* high, __m256i* w) {
  w[kJ] = plane_codes<kLow, 0, kJ>(low);
  if constexpr (kHigh > 0) w[kJ] = _mm256_or_si256(w[kJ], plane_codes<kHigh, kLow, kJ>(high));
  if constexpr (kJ < 7) load_codes_from<kLow, kHigh, kJ + 1>(low, high, w);
}

template <int kLow, int kHigh>
PLAIT_AVX2_INLINE void load_codes(const std::byte* planes, __m256i* w) {
  __m256i low[kLow];
  __m256i high[kHigh > 0 ? kHigh : 1];
  for (int v = 0; v < kLow; ++v) low[v] = load_vector(planes + 32 * v);
  for (int v = 0; v < kHigh; ++v) high[v] = load_vector(planes + 32 * (kLow + v));
  load_codes_from<kLow, kHigh, 0>(low, high, w);
}

PLAIT_AVX2_INLINE void codes_to_iq4(__m256i* w) {
  const __m256i values =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values)));
  for (int j = 0; j < 8; ++j) w[j] = _mm256_shuffle_epi8(values, w[j]);
}

// int16 value of each row's byte, twice: the multiplier of a row's pair of int16 sums.
PLAIT_AVX2_INLINE __m256i twice_int16(__m256i v) {
  const __m256i order = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, 0, 1, 0, 1, 4, 5,
                                         4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
  return _mm256_shuffle_epi8(v, order);
}
PLAIT_AVX2_INLINE __m256i pairs_int16(__m256i first, __m256i second) {
  return _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa);
}

template <PackedKind K>
PLAIT_AVX2_INLINE Head load_head(const std::byte* record) {
  Head head;
  head.d = load_f16x8(record);
  head.min_d = record_shape(K).has_min_d ? load_f16x8(record + 2 * kRowGroup) : _mm256_setzero_ps();
  if constexpr (K == PackedKind::kU2K) head.min_d = _mm256_sub_ps(_mm256_setzero_ps(), head.min_d);
  return head;
}

template <PackedKind K>
PLAIT_AVX2_INLINE void load_per_16_scales(const std::byte* p, Part& part) {
  __m256i s0 = _mm256_cvtepi8_epi32(load_8_bytes(p));
  __m256i s1 = _mm256_cvtepi8_epi32(load_8_bytes(p + kRowGroup));
  if constexpr (K == PackedKind::kU2K) {  // unsigned nibbles; bits above them fall to the mask
    const __m256i mask = _mm256_set1_epi32(0xf);
    part.mins = pairs_int16(_mm256_and_si256(_mm256_srli_epi32(s0, 4), mask),
                            _mm256_and_si256(_mm256_srli_epi32(s1, 4), mask));
    s0 = _mm256_and_si256(s0, mask);
    s1 = _mm256_and_si256(s1, mask);
  } else {
    constexpr int kOffsetShift = K == PackedKind::kU3K ? 2 : 5;
    part.mins =
        _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(pairs_int16(s0, s1), kOffsetShift));
  }
  part.s0 = twice_int16(s0);
  part.s1 = twice_int16(s1);
}

template <PackedKind K>
PLAIT_AVX2_INLINE void load_part(const Head& head, const std::byte* p, Part& part) {
  constexpr RecordShape kShape = record_shape(K);
  load_codes<kShape.low_bits, kShape.high_bits>(p + kShape.planes_offset(), part.w);
  if constexpr (K == PackedKind::kCode4 || K == PackedKind::kCode4K) codes_to_iq4(part.w);
  part.d = head.d;
  part.m = head.min_d;
  if constexpr (K == PackedKind::kU4) part.m = _mm256_mul_ps(head.d, _mm256_set1_ps(-8.0F));
  if constexpr (K == PackedKind::kU5) part.m = _mm256_mul_ps(head.d, _mm256_set1_ps(-16.0F));
  if constexpr (is_per_16(K)) {
    load_per_16_scales<K>(p, part);
  } else if constexpr (kShape.num_scales > 0) {
    part.d = _mm256_mul_ps(head.d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(p))));
    if constexpr (kShape.num_scales > 1) {
      const __m256 mins = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(p + kRowGroup)));
      part.m = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(head.min_d, mins));
    }
  }
}

// sum[t] = sums of code quads [kFrom, kFrom + kNum) of one token each, in int16 lanes; the caller knows that
// they fit. Quads outside, tokens inside: a vector of codes serves all tokens, and one sum per token stays in
// registers.
template <int kTokens, int kFrom, int kNum>
PLAIT_AVX2_INLINE void dot_quads(const __m256i* w, const std::byte* q, __m256i (&sum)[kTokens]) {
  for (int j = kFrom; j < kFrom + kNum; ++j) {
    for (int t = 0; t < kTokens; ++t) {
      const __m256i products = _mm256_maddubs_epi16(w[j], broadcast_4_bytes(q + t * kBlock + 4 * j));
      sum[t] = j == kFrom ? products : _mm256_add_epi16(sum[t], products);
      if constexpr (kTokens > 1) PLAIT_PIN(sum[t]);
    }
  }
}

// A product of signed bytes fills its int16 pair, so each is widened before it is added.
template <int kTokens>
PLAIT_AVX2_INLINE void dot_signed(const __m256i* w, const std::byte* q, __m256i (&sum)[kTokens]) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (int j = 0; j < 8; ++j) {
    const __m256i magnitude = _mm256_abs_epi8(w[j]);
    for (int t = 0; t < kTokens; ++t) {
      const __m256i a = _mm256_sign_epi8(broadcast_4_bytes(q + t * kBlock + 4 * j), w[j]);
      const __m256i wide = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, a), ones);
      sum[t] = j == 0 ? wide : _mm256_add_epi32(sum[t], wide);
      if constexpr (kTokens > 1) PLAIT_PIN(sum[t]);
    }
  }
}

// Adds the quads [kFrom, kFrom + kNum), times `scale` per int16 lane, to (or, first, sets) the int32 totals.
template <int kTokens, int kFrom, int kNum>
PLAIT_AVX2_INLINE void dot_scaled(const __m256i* w, const std::byte* q, __m256i scale,
                                  __m256i (&total)[kTokens]) {
  __m256i sum[kTokens];
  dot_quads<kTokens, kFrom, kNum>(w, q, sum);
  for (int t = 0; t < kTokens; ++t) {
    const __m256i wide = _mm256_madd_epi16(sum[t], scale);
    total[t] = kFrom == 0 ? wide : _mm256_add_epi32(total[t], wide);
  }
}

// The integer sums of a part with the q of each token. How many int16 products may be added before they are
// widened: 2 * 127 * largest code * number must stay below 32768.
template <PackedKind K, int kTokens>
PLAIT_AVX2_INLINE void dot_part(const Part& part, const std::byte* q, __m256i (&total)[kTokens]) {
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (is_signed(K)) {
    dot_signed<kTokens>(part.w, q, total);
  } else if constexpr (K == PackedKind::kU6K) {
    dot_scaled<kTokens, 0, 2>(part.w, q, part.s0, total);
    dot_scaled<kTokens, 2, 2>(part.w, q, part.s0, total);
    dot_scaled<kTokens, 4, 2>(part.w, q, part.s1, total);
    dot_scaled<kTokens, 6, 2>(part.w, q, part.s1, total);
  } else if constexpr (is_per_16(K)) {
    dot_scaled<kTokens, 0, 4>(part.w, q, part.s0, total);
    dot_scaled<kTokens, 4, 4>(part.w, q, part.s1, total);
  } else if constexpr (record_shape(K).high_bits == 1) {
    dot_scaled<kTokens, 0, 4>(part.w, q, ones, total);
    dot_scaled<kTokens, 4, 4>(part.w, q, ones, total);
  } else {
    dot_scaled<kTokens, 0, 8>(part.w, q, ones, total);
  }
}

// acc[t] += one part times token t of `act`, for kTokens tokens whose sums fit in registers.
template <PackedKind K, int kTokens>
PLAIT_AVX2_INLINE void add_tokens(const Head& head, const Part& part, const ActRecord& act, __m256* acc) {
  __m256i total[kTokens];
  dot_part<K, kTokens>(part, act.q, total);
  for (int t = 0; t < kTokens; ++t) {
    __m256i isum = total[t];
    const __m256 scale = broadcast_float(act.scale + t * 4);
    if constexpr (is_per_16(K)) {
      const __m256i imin = _mm256_madd_epi16(part.mins, broadcast_4_bytes(act.half_sum + t * 4));
      if constexpr (K == PackedKind::kU2K) {
        acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(part.d, scale), _mm256_cvtepi32_ps(isum), acc[t]);
        acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(head.min_d, scale), _mm256_cvtepi32_ps(imin), acc[t]);
        continue;
      }
      isum = _mm256_add_epi32(isum, imin);
    }
    acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(part.d, scale), _mm256_cvtepi32_ps(isum), acc[t]);
    constexpr bool kHasMin = !is_per_16(K) && !is_signed(K);
    if constexpr (kHasMin) acc[t] = _mm256_fmadd_ps(part.m, broadcast_float(act.sum + t * 4), acc[t]);
  }
}

// acc[t] += one part times token t. So many tokens at a time that their sums and the codes stay in registers.
template <PackedKind K, int kTokens>
PLAIT_AVX2_INLINE void add_part(const Head& head, const Part& part, const ActRecord& act, __m256* acc) {
  constexpr int kMost = is_signed(K) ? 8 : K == PackedKind::kU6K ? 2 : 4;
  if constexpr (kTokens <= kMost) {
    add_tokens<K, kTokens>(head, part, act, acc);
  } else {
    add_tokens<K, kMost>(head, part, act, acc);
    const ActRecord rest{act.q + kMost * kBlock, act.scale + kMost * 4, act.sum + kMost * 4,
                         act.half_sum + kMost * 4};
    add_part<K, kTokens - kMost>(head, part, rest, acc + kMost);
  }
}

}  // namespace plait::avx2

#endif
