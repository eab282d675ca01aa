// A part (32 columns of V::kGroups groups of 8 rows) of each packed kind in registers, and its product with
// the tokens of a tile. One source for every ISA: V is a vector type of vec256-inl.h or vec512-inl.h, and
// PLAIT_HAS_VNNI says whether it can add products of bytes to int32. Included once per translation unit by
// matmul-inl.h.

namespace plait::PLAIT_ISA {

inline constexpr bool kHasVnni = PLAIT_HAS_VNNI;

// Keeps `value` in a register and the compiler from moving work across: without it GCC hoists the loads of
// all tokens to the front and spills.
#define PLAIT_PIN(value) asm volatile("" : "+v"(value))

template <class V>
struct Part {
  // Codes, by 4 columns: unsigned; signed for kS8 and kCode4*, there + 128 when VNNI multiplies them.
  typename V::Int w[8];
  typename V::Float d;  // scale of the 32 columns
  typename V::Float m;  // minimum, added once per column
  // Scale of columns 0..15 and of 16..31: int32 per row with VNNI, otherwise int16 twice per row.
  typename V::Int s0;
  typename V::Int s1;
  typename V::Int mins;  // int16 pairs per row that multiply the half sums
};

template <class V>
struct Head {
  typename V::Float d;
  typename V::Float min_d;
};

constexpr bool is_per_16(PackedKind kind) {
  return kind == PackedKind::kU2K || kind == PackedKind::kU3K || kind == PackedKind::kU6K;
}
constexpr bool is_signed(PackedKind kind) {
  return kind == PackedKind::kS8 || kind == PackedKind::kS8Apart || kind == PackedKind::kCode4 ||
         kind == PackedKind::kCode4K;
}

template <class V, int kBits, int kTo, int kJ>  // the codes of column quad kJ, in bits [kTo, kTo + kBits)
PLAIT_INLINE typename V::Int plane_codes(const typename V::Int* plane) {
  if constexpr (kBits == 8) return plane[kJ];
  constexpr int kMask = ((1 << kBits) - 1) << kTo;
  constexpr int kFrom = kJ / kBits * kBits;
  return V::bit_and(V::template shift_int16<kTo - kFrom>(plane[kJ % kBits]), V::set1_int8(kMask));
}

template <class V, int kLow, int kHigh, int kJ>
PLAIT_INLINE void load_codes_from(const typename V::Int* low, const typename V::Int* high,
                                  typename V::Int* w) {
  w[kJ] = plane_codes<V, kLow, 0, kJ>(low);
  if constexpr (kHigh > 0) w[kJ] = V::bit_or(w[kJ], plane_codes<V, kHigh, kLow, kJ>(high));
  if constexpr (kJ < 7) load_codes_from<V, kLow, kHigh, kJ + 1>(low, high, w);
}

template <class V, int kLow, int kHigh>
PLAIT_INLINE void load_codes(const std::byte* planes, size_t step, typename V::Int* w) {
  typename V::Int low[kLow];
  typename V::Int high[kHigh > 0 ? kHigh : 1];
  for (int v = 0; v < kLow; ++v) low[v] = V::load_32_bytes(planes + 32 * v, step);
  for (int v = 0; v < kHigh; ++v) high[v] = V::load_32_bytes(planes + 32 * (kLow + v), step);
  load_codes_from<V, kLow, kHigh, 0>(low, high, w);
}

// Where the lower bits of a part are that its kind keeps apart, and those of the group that follows.
struct LowPart {
  const std::byte* p;
  size_t step;
};

// The codes of kS8Apart and kU6: see packed_layout.h. Of kU6 the lower bits are 0; without VNNI, whose
// products of bytes of 8 bits would not fit into int16, its codes are only the upper 6 bits.
template <class V, PackedKind K>
PLAIT_INLINE void load_apart(const std::byte* p, size_t step, const LowPart& low, typename V::Int* w) {
  using Int = typename V::Int;
  constexpr bool kIsNarrow = K == PackedKind::kU6 && !kHasVnni;
  for (int i = 0; i < 2; ++i, p += 96, w += 4) {
    Int upper[3];
    for (int j = 0; j < 3; ++j) upper[j] = V::load_32_bytes(p + 32 * j, step);
    if constexpr (kIsNarrow) {
      for (int j = 0; j < 3; ++j) {
        w[j] = V::bit_and(V::template shift_int16<-2>(upper[j]), V::set1_int8(0x3f));
      }
      const Int last = V::bit_and(upper[2], V::set1_int8(0x03));
      w[3] = V::select_bits(V::set1_int8(0x30), V::template shift_int16<4>(upper[0]),
                            V::select_bits(V::set1_int8(0x0c), V::template shift_int16<2>(upper[1]), last));
      continue;
    }
    Int last = V::zero();
    if constexpr (K == PackedKind::kS8Apart) {
      const Int lower = V::load_32_bytes(low.p + 32 * i, low.step);
      const Int upper_bits = V::set1_int8(0xfc);
      w[0] = V::select_bits(upper_bits, upper[0], lower);
      w[1] = V::select_bits(upper_bits, upper[1], V::template shift_int16<-2>(lower));
      w[2] = V::select_bits(upper_bits, upper[2], V::template shift_int16<-4>(lower));
      last = V::bit_and(V::template shift_int16<-6>(lower), V::set1_int8(0x03));
    } else {
      for (int j = 0; j < 3; ++j) w[j] = V::bit_and(upper[j], V::set1_int8(0xfc));
    }
    last = V::select_bits(V::set1_int8(0x0c), V::template shift_int16<2>(upper[2]), last);
    last = V::select_bits(V::set1_int8(0x30), V::template shift_int16<4>(upper[1]), last);
    w[3] = V::select_bits(V::set1_int8(0xc0), V::template shift_int16<6>(upper[0]), last);
  }
}

// What a code index stands for, and the sign bit that VNNI wants turned.
template <class V, PackedKind K>
PLAIT_INLINE void finish_codes(typename V::Int* w) {
  const typename V::Int bias = V::set1_int8(0x80);
  if constexpr (K == PackedKind::kS8 && kHasVnni) {
    for (int j = 0; j < 8; ++j) w[j] = V::bit_xor(w[j], bias);
  }
  if constexpr (K == PackedKind::kS8Apart && !kHasVnni) {  // these are + 128 in memory
    for (int j = 0; j < 8; ++j) w[j] = V::bit_xor(w[j], bias);
  }
  if constexpr (K == PackedKind::kCode4 || K == PackedKind::kCode4K) {
    typename V::Int values = V::broadcast_16_bytes(kIq4Values);
    if constexpr (kHasVnni) values = V::bit_xor(values, bias);
    for (int j = 0; j < 8; ++j) w[j] = V::lookup_int8(values, w[j]);
  }
}

template <class V, PackedKind K>
PLAIT_INLINE Head<V> load_head(const std::byte* record, size_t step) {
  Head<V> head;
  head.d = V::load_f16x8(record, step);
  head.min_d = record_shape(K).has_min_d ? V::load_f16x8(record + 2 * kRowGroup, step) : V::zero_float();
  if constexpr (K == PackedKind::kU2K) head.min_d = V::negate(head.min_d);
  return head;
}

// The low int16 of each int32, twice: the multiplier of a row's pair of int16 sums.
template <class V>
PLAIT_INLINE typename V::Int twice_int16(typename V::Int a) {
  alignas(16) static constexpr int8_t kOrder[16] = {0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13};
  return V::lookup_int8(a, V::broadcast_16_bytes(kOrder));
}

template <class V, PackedKind K>
PLAIT_INLINE void load_per_16_scales(const std::byte* p, size_t step, Part<V>& part) {
  using Int = typename V::Int;
  Int s0 = V::load_int8x8(p, step);
  Int s1 = V::load_int8x8(p + kRowGroup, step);
  if constexpr (K == PackedKind::kU2K) {  // unsigned nibbles; bits above them fall to the mask
    const Int mask = V::set1_int32(0xf);
    part.mins = V::pairs_int16(V::bit_and(V::template shift_right_int32<4>(s0), mask),
                               V::bit_and(V::template shift_right_int32<4>(s1), mask));
    s0 = V::bit_and(s0, mask);
    s1 = V::bit_and(s1, mask);
  } else {
    constexpr int kOffsetShift = K == PackedKind::kU3K ? 2 : 5;
    part.mins = V::sub_int16(V::zero(), V::template shift_int16<kOffsetShift>(V::pairs_int16(s0, s1)));
  }
  part.s0 = kHasVnni ? s0 : twice_int16<V>(s0);
  part.s1 = kHasVnni ? s1 : twice_int16<V>(s1);
}

template <class V, PackedKind K>
PLAIT_INLINE void load_part(const Head<V>& head, const std::byte* p, size_t step, const LowPart& low,
                            Part<V>& part) {
  constexpr RecordShape kShape = record_shape(K);
  if constexpr (is_apart(K)) {
    load_apart<V, K>(p, step, low, part.w);
  } else {
    load_codes<V, kShape.low_bits, kShape.high_bits>(p + kShape.planes_offset(), step, part.w);
  }
  finish_codes<V, K>(part.w);
  part.d = head.d;
  part.m = head.min_d;
  if constexpr (K == PackedKind::kU4) part.m = V::mul(head.d, V::set1_float(-8.0F));
  if constexpr (K == PackedKind::kU5) part.m = V::mul(head.d, V::set1_float(-16.0F));
  if constexpr (K == PackedKind::kU6) part.m = V::mul(head.d, V::set1_float(-126.5F));
  if constexpr (is_per_16(K)) {
    load_per_16_scales<V, K>(p, step, part);
  } else if constexpr (kShape.num_scales > 0) {
    part.d = V::mul(head.d, V::to_float(V::load_int8x8(p, step)));
    if constexpr (kShape.num_scales > 1) {
      const typename V::Float mins = V::to_float(V::load_int8x8(p + kRowGroup, step));
      part.m = V::negate(V::mul(head.min_d, mins));
    }
  }
}

// sum[t] = sums of code quads [kFrom, kFrom + kNum) of one token each, in int16 lanes; the caller knows that
// they fit. Quads outside, tokens inside: a vector of codes serves all tokens, and one sum per token stays in
// registers.
template <class V, int kTokens, int kFrom, int kNum>
PLAIT_INLINE void dot_quads(const typename V::Int* w, const std::byte* q, typename V::Int (&sum)[kTokens]) {
  for (int j = kFrom; j < kFrom + kNum; ++j) {
    for (int t = 0; t < kTokens; ++t) {
      const typename V::Int a = V::broadcast_4_bytes(q + t * kBlock + 4 * j);
      const typename V::Int products = V::dot_bytes_int16(w[j], a);
      sum[t] = j == kFrom ? products : V::add_int16(sum[t], products);
      if constexpr (kTokens > 1) PLAIT_PIN(sum[t]);
    }
  }
}

// A product of signed bytes fills its int16 pair, so each is widened before it is added.
template <class V, int kTokens>
PLAIT_INLINE void dot_signed(const typename V::Int* w, const std::byte* q, typename V::Int (&sum)[kTokens]) {
  const typename V::Int ones = V::set1_int16(1);
  for (int j = 0; j < 8; ++j) {
    const typename V::Int magnitude = V::abs_int8(w[j]);
    for (int t = 0; t < kTokens; ++t) {
      const typename V::Int a = V::with_sign_of(V::broadcast_4_bytes(q + t * kBlock + 4 * j), w[j]);
      const typename V::Int wide = V::dot_int16(V::dot_bytes_int16(magnitude, a), ones);
      sum[t] = j == 0 ? wide : V::add_int32(sum[t], wide);
      if constexpr (kTokens > 1) PLAIT_PIN(sum[t]);
    }
  }
}

// Adds the quads [kFrom, kFrom + kNum), times `scale` per int16 lane, to (or, first, sets) the int32 totals.
template <class V, int kTokens, int kFrom, int kNum>
PLAIT_INLINE void dot_scaled(const typename V::Int* w, const std::byte* q, typename V::Int scale,
                             typename V::Int (&total)[kTokens]) {
  typename V::Int sum[kTokens];
  dot_quads<V, kTokens, kFrom, kNum>(w, q, sum);
  for (int t = 0; t < kTokens; ++t) {
    const typename V::Int wide = V::dot_int16(sum[t], scale);
    total[t] = kFrom == 0 ? wide : V::add_int32(total[t], wide);
  }
}

// The integer sums of a part with the q of each token. How many int16 products may be added before they are
// widened: 2 * 127 * largest code * number must stay below 32768.
template <class V, PackedKind K, int kTokens>
PLAIT_INLINE void dot_part(const Part<V>& part, const std::byte* q, typename V::Int (&total)[kTokens]) {
  const typename V::Int ones = V::set1_int16(1);
  if constexpr (is_signed(K)) {
    dot_signed<V, kTokens>(part.w, q, total);
  } else if constexpr (K == PackedKind::kU6K) {
    dot_scaled<V, kTokens, 0, 2>(part.w, q, part.s0, total);
    dot_scaled<V, kTokens, 2, 2>(part.w, q, part.s0, total);
    dot_scaled<V, kTokens, 4, 2>(part.w, q, part.s1, total);
    dot_scaled<V, kTokens, 6, 2>(part.w, q, part.s1, total);
  } else if constexpr (is_per_16(K)) {
    dot_scaled<V, kTokens, 0, 4>(part.w, q, part.s0, total);
    dot_scaled<V, kTokens, 4, 4>(part.w, q, part.s1, total);
  } else if constexpr (K == PackedKind::kU6) {
    const typename V::Int fours = V::set1_int16(4);
    dot_scaled<V, kTokens, 0, 2>(part.w, q, fours, total);
    dot_scaled<V, kTokens, 2, 2>(part.w, q, fours, total);
    dot_scaled<V, kTokens, 4, 2>(part.w, q, fours, total);
    dot_scaled<V, kTokens, 6, 2>(part.w, q, fours, total);
  } else if constexpr (record_shape(K).high_bits == 1) {
    dot_scaled<V, kTokens, 0, 4>(part.w, q, ones, total);
    dot_scaled<V, kTokens, 4, 4>(part.w, q, ones, total);
  } else {
    dot_scaled<V, kTokens, 0, 8>(part.w, q, ones, total);
  }
}

#if PLAIT_HAS_VNNI

// sum[t] += code quads [kFrom, kFrom + kNum) times the q of token t, exact in int32.
template <class V, int kTokens, int kFrom, int kNum>
PLAIT_INLINE void dot_quads_vnni(const typename V::Int* w, const std::byte* q,
                                 typename V::Int (&sum)[kTokens]) {
  for (int j = kFrom; j < kFrom + kNum; ++j) {
    for (int t = 0; t < kTokens; ++t) {
      sum[t] = V::add_dot_bytes(sum[t], w[j], q + t * kBlock + 4 * j);
      if constexpr (kTokens > 1) PLAIT_PIN(sum[t]);
    }
  }
}

// As dot_part.
template <class V, PackedKind K, int kTokens>
PLAIT_INLINE void dot_part_vnni(const Part<V>& part, const ActRecord& act,
                                typename V::Int (&total)[kTokens]) {
  const typename V::Int unbias = V::set1_int16(-128);
  for (int t = 0; t < kTokens; ++t) {
    total[t] = is_signed(K) ? V::dot_int16(V::broadcast_4_bytes(act.half_sum + t * 4), unbias) : V::zero();
  }
  if constexpr (is_per_16(K)) {
    dot_quads_vnni<V, kTokens, 0, 4>(part.w, act.q, total);
    typename V::Int second[kTokens];
    for (int t = 0; t < kTokens; ++t) second[t] = V::zero();
    dot_quads_vnni<V, kTokens, 4, 4>(part.w, act.q, second);
    for (int t = 0; t < kTokens; ++t) {
      total[t] = V::add_int32(V::mul_int32(total[t], part.s0), V::mul_int32(second[t], part.s1));
    }
  } else {
    dot_quads_vnni<V, kTokens, 0, 8>(part.w, act.q, total);
  }
}

#endif

// acc[t] += one part times token t of `act`, for kTokens tokens whose sums fit in registers.
template <class V, PackedKind K, int kTokens>
PLAIT_INLINE void add_tokens(const Head<V>& head, const Part<V>& part, const ActRecord& act,
                             typename V::Float* acc) {
  using Float = typename V::Float;
  typename V::Int total[kTokens];
#if PLAIT_HAS_VNNI
  dot_part_vnni<V, K, kTokens>(part, act, total);
#else
  dot_part<V, K, kTokens>(part, act.q, total);
#endif
  for (int t = 0; t < kTokens; ++t) {
    typename V::Int isum = total[t];
    const Float scale = V::broadcast_float(act.scale + t * 4);
    if constexpr (is_per_16(K)) {
      const typename V::Int imin = V::dot_int16(part.mins, V::broadcast_4_bytes(act.half_sum + t * 4));
      if constexpr (K == PackedKind::kU2K) {
        acc[t] = V::fma(V::mul(part.d, scale), V::to_float(isum), acc[t]);
        acc[t] = V::fma(V::mul(head.min_d, scale), V::to_float(imin), acc[t]);
        continue;
      }
      isum = V::add_int32(isum, imin);
    }
    acc[t] = V::fma(V::mul(part.d, scale), V::to_float(isum), acc[t]);
    constexpr bool kHasMin = !is_per_16(K) && !is_signed(K);
    if constexpr (kHasMin) acc[t] = V::fma(part.m, V::broadcast_float(act.sum + t * 4), acc[t]);
  }
}

// So many tokens at a time that their sums and the codes stay in registers: 32 of them with AVX-512, or 16.
constexpr int tokens_at_once(PackedKind kind) {
  if (PLAIT_HAS_512) return is_per_16(kind) ? 4 : 8;
  return is_signed(kind) ? 8 : kind == PackedKind::kU6K ? 2 : 4;
}

// acc[t] += one part times token t.
template <class V, PackedKind K, int kTokens>
PLAIT_INLINE void add_part(const Head<V>& head, const Part<V>& part, const ActRecord& act,
                           typename V::Float* acc) {
  constexpr int kMost = tokens_at_once(K);
  if constexpr (kTokens <= kMost) {
    add_tokens<V, K, kTokens>(head, part, act, acc);
  } else {
    add_tokens<V, K, kMost>(head, part, act, acc);
    const ActRecord rest{act.q + kMost * kBlock, act.scale + kMost * 4, act.sum + kMost * 4,
                         act.half_sum + kMost * 4};
    add_part<V, K, kTokens - kMost>(head, part, rest, acc + kMost);
  }
}

}  // namespace plait::PLAIT_ISA
