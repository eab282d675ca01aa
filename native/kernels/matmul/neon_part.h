// NEON pieces: half a part (4 of the 8 rows x 32 columns) of each packed kind in registers, and its product
// with the tokens of a tile. Half a part at a time: its 8 vectors of codes, the sums of 8 tokens for both
// halves and what is in flight fit in 32 registers.
// Included by matmul_neon.cc only, inside its target region.
#pragma once

#include "kernels/matmul/act_tile.h"
#include "kernels/matmul/packed_layout.h"

namespace plait::neon {

// Keeps the compiler from loading the codes of both halves first, which takes more registers than there are.
#define PLAIT_FENCE() asm volatile("" ::: "memory")

// 4 rows x 32 columns: code vectors by 4 columns, and what the kind needs beside them. Codes of the kinds
// that scale 16 columns are signed already: their offset is off.
struct Part {
  int8x16_t w[8];
  float32x4_t d;   // scale of the 32 columns
  float32x4_t m;   // kU2K: -min_d; else the minimum, added once per column
  int32x4_t s[2];  // scale of columns 0..15 and of 16..31
  int32x4_t mins[2];
};

struct Head {
  float32x4_t d[2];  // by half
  float32x4_t min_d[2];
};

constexpr bool is_per_16(PackedKind kind) {
  return kind == PackedKind::kU2K || kind == PackedKind::kU3K || kind == PackedKind::kU6K;
}
constexpr bool has_table(PackedKind kind) {
  return kind == PackedKind::kCode4 || kind == PackedKind::kCode4K;
}
// A minimum per 32 columns, be it stored or the offset of the codes.
constexpr bool has_min(PackedKind kind) {
  return !is_per_16(kind) && !has_table(kind) && kind != PackedKind::kS8 && kind != PackedKind::kS8Apart;
}

inline void load_f16x8(const std::byte* p, float32x4_t (&out)[2]) {
  const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(p)));
  out[0] = vcvt_f32_f16(vget_low_f16(halves));
  out[1] = vcvt_high_f32_f16(halves);
}

// The int8 of each of 4 rows.
template <int kHalf>
inline int32x4_t load_scales(const std::byte* p) {
  const int16x8_t wide = vmovl_s8(vld1_s8(reinterpret_cast<const int8_t*>(p)));
  return kHalf == 0 ? vmovl_s16(vget_low_s16(wide)) : vmovl_high_s16(wide);
}

template <PackedKind K>
inline Head load_head(const std::byte* record) {
  Head head;
  load_f16x8(record, head.d);
  head.min_d[0] = head.min_d[1] = vdupq_n_f32(0.0F);
  if constexpr (record_shape(K).has_min_d) load_f16x8(record + 2 * kRowGroup, head.min_d);
  return head;
}

template <int kShift>  // to the left when positive
inline uint8x16_t shift_bits(uint8x16_t v) {
  if constexpr (kShift > 0) {
    return vshlq_n_u8(v, kShift);
  } else if constexpr (kShift < 0) {
    return vshrq_n_u8(v, -kShift);
  } else {
    return v;
  }
}

// The codes of column quad kJ, in bits [kTo, kTo + kBits).
template <int kBits, int kTo, int kJ>
inline uint8x16_t plane_codes(const std::byte* plane) {
  constexpr int kFrom = kJ / kBits * kBits;
  const uint8x16_t bytes = vld1q_u8(reinterpret_cast<const uint8_t*>(plane + 32 * (kJ % kBits)));
  const uint8x16_t shifted = shift_bits<kTo - kFrom>(bytes);
  if constexpr (kTo == 0 && kFrom + kBits == 8) return shifted;  // nothing stands above
  return vandq_u8(shifted, vdupq_n_u8(((1 << kBits) - 1) << kTo));
}

// The upper 6 bits of column quad kJ of kS8Apart and kU6, in bits [kTo, kTo + 6).
template <int kTo, int kJ>
inline uint8x16_t upper_codes(const std::byte* record) {
  const auto load = [&](int j) {
    return vld1q_u8(reinterpret_cast<const uint8_t*>(record + 32 * (kJ / 4 * 3 + j)));
  };
  if constexpr (kJ % 4 < 3) {
    return vandq_u8(shift_bits<kTo - 2>(load(kJ % 4)), vdupq_n_u8(0x3f << kTo));
  } else {
    const uint8x16_t first = vandq_u8(shift_bits<kTo + 4>(load(0)), vdupq_n_u8(0x30 << kTo));
    const uint8x16_t second = vandq_u8(shift_bits<kTo + 2>(load(1)), vdupq_n_u8(0x0c << kTo));
    const uint8x16_t third = vandq_u8(shift_bits<kTo>(load(2)), vdupq_n_u8(0x03 << kTo));
    return vorrq_u8(vorrq_u8(first, second), third);
  }
}

// `low`: the bits that kS8Apart keeps apart.
template <PackedKind K, int kJ>
inline uint8x16_t load_code(const std::byte* planes, const std::byte* low) {
  constexpr RecordShape kShape = record_shape(K);
  if constexpr (K == PackedKind::kS8Apart) {
    const uint8x16_t bits = vld1q_u8(reinterpret_cast<const uint8_t*>(low + 32 * (kJ / 4)));
    const uint8x16_t lower = vandq_u8(shift_bits<-2 * (kJ % 4)>(bits), vdupq_n_u8(0x03));
    return veorq_u8(vorrq_u8(upper_codes<2, kJ>(planes), lower), vdupq_n_u8(0x80));
  } else if constexpr (K == PackedKind::kU6) {
    return upper_codes<0, kJ>(planes);
  } else {
    uint8x16_t code = plane_codes<kShape.low_bits, 0, kJ>(planes);
    if constexpr (kShape.high_bits > 0) {
      code =
          vorrq_u8(code, plane_codes<kShape.high_bits, kShape.low_bits, kJ>(planes + 32 * kShape.low_bits));
    }
    return code;
  }
}

template <PackedKind K, int kJ>
inline void load_codes(const std::byte* planes, const std::byte* low, int8x16_t (&w)[8]) {
  const uint8x16_t code = load_code<K, kJ>(planes, low);
  w[kJ] = vreinterpretq_s8_u8(code);
  if constexpr (has_table(K)) w[kJ] = vqtbl1q_s8(vld1q_s8(kIq4Values), code);
  if constexpr (K == PackedKind::kU3K) w[kJ] = vsubq_s8(w[kJ], vdupq_n_s8(4));
  if constexpr (K == PackedKind::kU6K) w[kJ] = vsubq_s8(w[kJ], vdupq_n_s8(32));
  if constexpr (kJ < 7) load_codes<K, kJ + 1>(planes, low, w);
}

template <PackedKind K, int kHalf>
inline Part load_part(const Head& head, const std::byte* p, const std::byte* low) {
  constexpr RecordShape kShape = record_shape(K);
  Part part;
  load_codes<K, 0>(p + kShape.planes_offset() + 16 * kHalf,
                   K == PackedKind::kS8Apart ? low + 16 * kHalf : low, part.w);
  part.d = head.d[kHalf];
  part.m = head.min_d[kHalf];
  if constexpr (K == PackedKind::kU4) part.m = vmulq_n_f32(part.d, -8.0F);
  if constexpr (K == PackedKind::kU5) part.m = vmulq_n_f32(part.d, -16.0F);
  if constexpr (K == PackedKind::kU6) part.m = vmulq_n_f32(part.d, -126.5F);
  if constexpr (is_per_16(K)) {
    for (int i = 0; i < 2; ++i) {
      part.s[i] = load_scales<kHalf>(p + i * kRowGroup);
      if constexpr (K == PackedKind::kU2K) {  // unsigned nibbles; bits above them fall to the mask
        part.mins[i] = vandq_s32(vshrq_n_s32(part.s[i], 4), vdupq_n_s32(0xf));
        part.s[i] = vandq_s32(part.s[i], vdupq_n_s32(0xf));
      }
    }
    if constexpr (K == PackedKind::kU2K) part.m = vnegq_f32(part.m);
  } else if constexpr (kShape.num_scales > 0) {
    part.d = vmulq_f32(part.d, vcvtq_f32_s32(load_scales<kHalf>(p)));
    if constexpr (kShape.num_scales > 1) {
      part.m = vnegq_f32(vmulq_f32(part.m, vcvtq_f32_s32(load_scales<kHalf>(p + kRowGroup))));
    }
  }
  return part;
}

// sum[row] += the products of its 4 codes with bytes 4 * kLane .. 4 * kLane + 3 of q.
template <int kLane>
inline int32x4_t dot_quad(int32x4_t sum, int8x16_t w, int8x16_t q) {
#if defined(__clang__) && __clang_major__ < 16  // knows the intrinsic only when the whole file may use it
  asm("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(w), "w"(q), "i"(kLane));
  return sum;
#else
  return vdotq_laneq_s32(sum, w, q, kLane);
#endif
}

// Sums of 16 columns of each row.
inline int32x4_t dot_16(const int8x16_t* w, int8x16_t q) {
  int32x4_t sum = dot_quad<0>(vdupq_n_s32(0), w[0], q);
  sum = dot_quad<1>(sum, w[1], q);
  sum = dot_quad<2>(sum, w[2], q);
  return dot_quad<3>(sum, w[3], q);
}

inline float read_float(const std::byte* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// acc[t] += half a part times token t.
template <PackedKind K, int kTokens>
inline void add_tokens(const Part& part, const ActRecord& act, float32x4_t (&acc)[kTokens]) {
  for (int t = 0; t < kTokens; ++t) {
    const auto* q = reinterpret_cast<const int8_t*>(act.q + t * kBlock);
    const float scale = read_float(act.scale + t * 4);
    int32x4_t isum = dot_16(part.w, vld1q_s8(q));
    const int32x4_t second = dot_16(part.w + 4, vld1q_s8(q + 16));
    if constexpr (is_per_16(K)) {
      isum = vmlaq_s32(vmulq_s32(isum, part.s[0]), second, part.s[1]);
    } else {
      isum = vaddq_s32(isum, second);
    }
    if constexpr (K == PackedKind::kU6) isum = vshlq_n_s32(isum, 2);
    acc[t] = vfmaq_f32(acc[t], vmulq_n_f32(part.d, scale), vcvtq_f32_s32(isum));
    if constexpr (K == PackedKind::kU2K) {
      int16_t sums[2];
      std::memcpy(sums, act.half_sum + t * 4, sizeof sums);
      const int32x4_t imin = vmlaq_n_s32(vmulq_n_s32(part.mins[0], sums[0]), part.mins[1], sums[1]);
      acc[t] = vfmaq_f32(acc[t], vmulq_n_f32(part.m, scale), vcvtq_f32_s32(imin));
    }
    if constexpr (has_min(K)) acc[t] = vfmaq_n_f32(acc[t], part.m, read_float(act.sum + t * 4));
  }
}

}  // namespace plait::neon
