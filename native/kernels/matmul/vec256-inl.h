// 256-bit vectors: 8 rows, one group. Included once per translation unit by matmul-inl.h, which sets
// PLAIT_ISA, PLAIT_FN and PLAIT_INLINE.
//
// A vector type of the kernels has Int and Float, kGroups (neighbouring groups of 8 rows that it spans) and
// the operations below; `step` is the distance between these groups in bytes.

namespace plait::PLAIT_ISA {

struct V256 {
  static constexpr int32_t kGroups = 1;
  using Int = __m256i;
  using Float = __m256;

  static PLAIT_INLINE Int load_32_bytes(const std::byte* p, size_t /*step*/) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static PLAIT_INLINE Int load_int8x8(const std::byte* p, size_t /*step*/) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static PLAIT_INLINE Float load_f16x8(const std::byte* p, size_t /*step*/) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static PLAIT_INLINE Float load_bf16x8(const std::byte* p, size_t /*step*/) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static PLAIT_INLINE Float load_f32x8(const std::byte* p, size_t /*step*/) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static PLAIT_INLINE void store(float* out, Float a) { _mm256_storeu_ps(out, a); }

  static PLAIT_INLINE Int broadcast_4_bytes(const std::byte* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
  }
  static PLAIT_INLINE Int broadcast_16_bytes(const void* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static PLAIT_INLINE Float broadcast_float(const std::byte* p) {
    return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
  }
  static PLAIT_INLINE Int zero() { return _mm256_setzero_si256(); }
  static PLAIT_INLINE Int set1_int8(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
  static PLAIT_INLINE Int set1_int16(int value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }
  static PLAIT_INLINE Int set1_int32(int value) { return _mm256_set1_epi32(value); }
  static PLAIT_INLINE Float zero_float() { return _mm256_setzero_ps(); }
  static PLAIT_INLINE Float set1_float(float value) { return _mm256_set1_ps(value); }

  static PLAIT_INLINE Int bit_and(Int a, Int b) { return _mm256_and_si256(a, b); }
  static PLAIT_INLINE Int bit_or(Int a, Int b) { return _mm256_or_si256(a, b); }
  static PLAIT_INLINE Int bit_xor(Int a, Int b) { return _mm256_xor_si256(a, b); }
  // Bits of `a` where those of the mask are set, elsewhere of `b`.
  static PLAIT_INLINE Int select_bits(Int mask, Int a, Int b) {
#if PLAIT_HAS_512
    return _mm256_ternarylogic_epi32(mask, a, b, 0xCA);
#else
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
#endif
  }
  template <int kBits>  // to the left when positive; within 16 bits
  static PLAIT_INLINE Int shift_int16(Int a) {
    if constexpr (kBits > 0) return _mm256_slli_epi16(a, kBits);
    if constexpr (kBits < 0) return _mm256_srli_epi16(a, -kBits);
    return a;
  }
  template <int kBits>
  static PLAIT_INLINE Int shift_right_int32(Int a) {
    return _mm256_srli_epi32(a, kBits);
  }
  // Even int16 lanes of `first`; the even lanes of `second` beside them.
  static PLAIT_INLINE Int pairs_int16(Int first, Int second) {
    return _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa);
  }
  static PLAIT_INLINE Int lookup_int8(Int table, Int index) { return _mm256_shuffle_epi8(table, index); }

  static PLAIT_INLINE Int add_int16(Int a, Int b) { return _mm256_add_epi16(a, b); }
  static PLAIT_INLINE Int sub_int16(Int a, Int b) { return _mm256_sub_epi16(a, b); }
  static PLAIT_INLINE Int add_int32(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static PLAIT_INLINE Int mul_int32(Int a, Int b) { return _mm256_mullo_epi32(a, b); }
  static PLAIT_INLINE Int abs_int8(Int a) { return _mm256_abs_epi8(a); }
  static PLAIT_INLINE Int with_sign_of(Int a, Int sign) { return _mm256_sign_epi8(a, sign); }
  static PLAIT_INLINE Int dot_bytes_int16(Int codes, Int q) { return _mm256_maddubs_epi16(codes, q); }
  static PLAIT_INLINE Int dot_int16(Int a, Int b) { return _mm256_madd_epi16(a, b); }
#if PLAIT_HAS_VNNI
  static PLAIT_INLINE Int add_dot_bytes(Int sum, Int codes, const std::byte* q) {
    return _mm256_dpbusd_epi32(sum, codes, broadcast_4_bytes(q));
  }
#endif

  static PLAIT_INLINE Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
  static PLAIT_INLINE Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static PLAIT_INLINE Float negate(Float a) { return _mm256_sub_ps(_mm256_setzero_ps(), a); }
  static PLAIT_INLINE Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
};

}  // namespace plait::PLAIT_ISA
