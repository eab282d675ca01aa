// 512-bit vectors: 16 rows, two neighbouring groups that are packed as ever. See vec256-inl.h.

namespace plait::PLAIT_ISA {

struct V512 {
  static constexpr int32_t kGroups = 2;
  using Int = __m512i;
  using Float = __m512;

  static PLAIT_INLINE Int load_32_bytes(const std::byte* p, size_t step) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(V256::load_32_bytes(p, step)),
                              V256::load_32_bytes(p + step, step), 1);
  }
  static PLAIT_INLINE Int load_int8x8(const std::byte* p, size_t step) {
    return _mm512_cvtepi8_epi32(
        _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)),
                           _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + step))));
  }
  static PLAIT_INLINE __m256i load_16_bytes(const std::byte* p, size_t step) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + step)), 1);
  }
  static PLAIT_INLINE Float load_f16x8(const std::byte* p, size_t step) {
    return _mm512_cvtph_ps(load_16_bytes(p, step));
  }
  static PLAIT_INLINE Float load_bf16x8(const std::byte* p, size_t step) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_bytes(p, step)), 16));
  }
  static PLAIT_INLINE Float load_f32x8(const std::byte* p, size_t step) {
    return _mm512_castsi512_ps(load_32_bytes(p, step));
  }
  static PLAIT_INLINE void store(float* out, Float a) { _mm512_storeu_ps(out, a); }

  static PLAIT_INLINE Int broadcast_4_bytes(const std::byte* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
  }
  static PLAIT_INLINE Int broadcast_16_bytes(const void* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static PLAIT_INLINE Float broadcast_float(const std::byte* p) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(p));
  }
  static PLAIT_INLINE Int zero() { return _mm512_setzero_si512(); }
  static PLAIT_INLINE Int set1_int8(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
  static PLAIT_INLINE Int set1_int16(int value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
  static PLAIT_INLINE Int set1_int32(int value) { return _mm512_set1_epi32(value); }
  static PLAIT_INLINE Float zero_float() { return _mm512_setzero_ps(); }
  static PLAIT_INLINE Float set1_float(float value) { return _mm512_set1_ps(value); }

  static PLAIT_INLINE Int bit_and(Int a, Int b) { return _mm512_and_si512(a, b); }
  static PLAIT_INLINE Int bit_or(Int a, Int b) { return _mm512_or_si512(a, b); }
  static PLAIT_INLINE Int bit_xor(Int a, Int b) { return _mm512_xor_si512(a, b); }
  static PLAIT_INLINE Int select_bits(Int mask, Int a, Int b) {
    return _mm512_ternarylogic_epi32(mask, a, b, 0xCA);
  }
  template <int kBits>
  static PLAIT_INLINE Int shift_int16(Int a) {
    if constexpr (kBits > 0) return _mm512_slli_epi16(a, kBits);
    if constexpr (kBits < 0) return _mm512_srli_epi16(a, -kBits);
    return a;
  }
  template <int kBits>
  static PLAIT_INLINE Int shift_right_int32(Int a) {
    return _mm512_srli_epi32(a, kBits);
  }
  static PLAIT_INLINE Int pairs_int16(Int first, Int second) {
    return _mm512_mask_blend_epi16(0xaaaaaaaaU, first, _mm512_slli_epi32(second, 16));
  }
  static PLAIT_INLINE Int lookup_int8(Int table, Int index) { return _mm512_shuffle_epi8(table, index); }

  static PLAIT_INLINE Int add_int16(Int a, Int b) { return _mm512_add_epi16(a, b); }
  static PLAIT_INLINE Int sub_int16(Int a, Int b) { return _mm512_sub_epi16(a, b); }
  static PLAIT_INLINE Int add_int32(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static PLAIT_INLINE Int mul_int32(Int a, Int b) { return _mm512_mullo_epi32(a, b); }
  static PLAIT_INLINE Int abs_int8(Int a) { return _mm512_abs_epi8(a); }
  // Where `sign` is 0 the result is `a`: it meets a magnitude of 0.
  static PLAIT_INLINE Int with_sign_of(Int a, Int sign) {
    return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(sign), _mm512_setzero_si512(), a);
  }
  static PLAIT_INLINE Int dot_bytes_int16(Int codes, Int q) { return _mm512_maddubs_epi16(codes, q); }
  static PLAIT_INLINE Int dot_int16(Int a, Int b) { return _mm512_madd_epi16(a, b); }
#if PLAIT_HAS_VNNI
  static PLAIT_INLINE Int add_dot_bytes(Int sum, Int codes, const std::byte* q) {
    return _mm512_dpbusd_epi32(sum, codes, broadcast_4_bytes(q));
  }
#endif

  static PLAIT_INLINE Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
  static PLAIT_INLINE Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static PLAIT_INLINE Float negate(Float a) { return _mm512_sub_ps(_mm512_setzero_ps(), a); }
  static PLAIT_INLINE Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace plait::PLAIT_ISA
