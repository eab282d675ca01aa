#include "kernels/matmul/block_codes.h"

#include <cstring>

#include "base/error.h"
#include "kernels/matmul/half.h"

namespace plait {

const int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

namespace {

uint16_t load_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | (p[1] << 8)); }

uint32_t load_u32(const uint8_t* p) {
  return static_cast<uint32_t>(load_u16(p)) | (static_cast<uint32_t>(load_u16(p + 2)) << 16);
}

// 32 nibbles in 16 bytes: element k in the low half of byte k, element k + 16 in its high half.
void decode_nibbles(const uint8_t* src, uint8_t* code) {
  for (int k = 0; k < 16; ++k) {
    code[k] = src[k] & 0xf;
    code[k + 16] = src[k] >> 4;
  }
}

void add_fifth_bits(uint32_t bits, uint8_t* code) {
  for (int k = 0; k < 32; ++k) code[k] = static_cast<uint8_t>(code[k] | ((bits >> k & 1U) << 4));
}

void decode_q8_0(const uint8_t* p, BlockCodes& out) {
  out.d = load_u16(p);
  std::memcpy(out.code, p + 2, 32);
}

void decode_q5(const uint8_t* p, BlockCodes& out) {  // p: high bits, then nibbles
  decode_nibbles(p + 4, out.code);
  add_fifth_bits(load_u32(p), out.code);
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each are the low 6 bits of bytes
// 0..3 and 4..7; of the others, bytes 8..11 hold the low 4 bits and the top bits of bytes 0..7 the high 2.
void decode_scales_k4(const uint8_t* p, BlockCodes& out) {
  for (int s = 0; s < 4; ++s) {
    out.scale[s] = static_cast<int8_t>(p[s] & 63);
    out.min[s] = static_cast<int8_t>(p[s + 4] & 63);
    out.scale[s + 4] = static_cast<int8_t>((p[s + 8] & 0xf) | (p[s] >> 6 << 4));
    out.min[s + 4] = static_cast<int8_t>((p[s + 8] >> 4) | (p[s + 4] >> 6 << 4));
  }
}

// 64 elements in 32 bytes: the low nibbles are elements 0..31, the high ones 32..63.
void decode_nibbles_64(const uint8_t* src, uint8_t* code) {
  for (int k = 0; k < 32; ++k) {
    code[k] = src[k] & 0xf;
    code[k + 32] = src[k] >> 4;
  }
}

void decode_q4_k(const uint8_t* p, BlockCodes& out) {
  out.d = load_u16(p);
  out.min_d = load_u16(p + 2);
  decode_scales_k4(p + 4, out);
  for (int i = 0; i < 4; ++i) decode_nibbles_64(p + 16 + 32 * i, out.code + 64 * i);
}

void decode_q5_k(const uint8_t* p, BlockCodes& out) {
  out.d = load_u16(p);
  out.min_d = load_u16(p + 2);
  decode_scales_k4(p + 4, out);
  const uint8_t* high = p + 16;  // byte k holds bit 4 of elements k, k + 32, ... k + 224
  for (int i = 0; i < 4; ++i) decode_nibbles_64(p + 48 + 32 * i, out.code + 64 * i);
  for (int k = 0; k < 256; ++k) {
    out.code[k] = static_cast<uint8_t>(out.code[k] | ((high[k % 32] >> (k / 32) & 1) << 4));
  }
}

// 128 two-bit codes in 32 bytes: element k in bits 2 * (k / 32) of byte k % 32.
void decode_pairs_128(const uint8_t* src, uint8_t* code) {
  for (int k = 0; k < 128; ++k) code[k] = src[k % 32] >> (2 * (k / 32)) & 3;
}

void decode_q2_k(const uint8_t* p, BlockCodes& out) {
  for (int s = 0; s < 16; ++s) {
    out.scale[s] = static_cast<int8_t>(p[s] & 0xf);
    out.min[s] = static_cast<int8_t>(p[s] >> 4);
  }
  for (int i = 0; i < 2; ++i) decode_pairs_128(p + 16 + 32 * i, out.code + 128 * i);
  out.d = load_u16(p + 80);
  out.min_d = load_u16(p + 82);
}

void decode_q3_k(const uint8_t* p, BlockCodes& out) {
  const uint8_t* high = p;  // byte k holds bit 2 of elements k, k + 32, ... k + 224
  for (int i = 0; i < 2; ++i) decode_pairs_128(p + 32 + 32 * i, out.code + 128 * i);
  for (int k = 0; k < 256; ++k) {
    out.code[k] = static_cast<uint8_t>(out.code[k] | ((high[k % 32] >> (k / 32) & 1) << 2));
  }
  // Sixteen 6-bit scales, offset by 32: nibbles in bytes 0..7, the high 2 bits in bytes 8..11.
  const uint8_t* scales = p + 96;
  for (int s = 0; s < 16; ++s) {
    const int low = s < 8 ? scales[s] & 0xf : scales[s - 8] >> 4;
    const int top = scales[8 + s % 4] >> (2 * (s / 4)) & 3;
    out.scale[s] = static_cast<int8_t>((low | (top << 4)) - 32);
  }
  out.d = load_u16(p + 108);
}

void decode_q6_k(const uint8_t* p, BlockCodes& out) {
  for (int half = 0; half < 2; ++half) {  // of 128 elements each
    const uint8_t* low = p + 64 * half;
    const uint8_t* high = p + 128 + 32 * half;  // byte k: bits 4, 5 of elements k, k + 32, k + 64, k + 96
    uint8_t* code = out.code + 128 * half;
    for (int k = 0; k < 64; ++k) {
      code[k] = static_cast<uint8_t>((low[k] & 0xf) | ((high[k % 32] >> (2 * (k / 32)) & 3) << 4));
      code[k + 64] = static_cast<uint8_t>((low[k] >> 4) | ((high[k % 32] >> (4 + 2 * (k / 32)) & 3) << 4));
    }
  }
  std::memcpy(out.scale, p + 192, 16);
  out.d = load_u16(p + 208);
}

void decode_iq4_xs(const uint8_t* p, BlockCodes& out) {
  out.d = load_u16(p);
  const uint16_t top = load_u16(p + 2);
  for (int s = 0; s < 8; ++s) {
    const int low = p[4 + s / 2] >> (4 * (s % 2)) & 0xf;
    out.scale[s] = static_cast<int8_t>((low | ((top >> (2 * s) & 3) << 4)) - 32);
    decode_nibbles(p + 8 + 16 * s, out.code + 32 * s);
  }
}

}  // namespace

void decode_block(GgmlType type, const std::byte* src, BlockCodes& out) {
  const auto* p = reinterpret_cast<const uint8_t*>(src);
  out.num_elements = block_shape(type).elements;
  switch (type) {
    case GgmlType::kQ4_0:
    case GgmlType::kIQ4_NL:
      out.d = load_u16(p);
      return decode_nibbles(p + 2, out.code);
    case GgmlType::kQ4_1:
      out.d = load_u16(p);
      out.min_d = load_u16(p + 2);
      return decode_nibbles(p + 4, out.code);
    case GgmlType::kQ5_0:
      out.d = load_u16(p);
      return decode_q5(p + 2, out);
    case GgmlType::kQ5_1:
      out.d = load_u16(p);
      out.min_d = load_u16(p + 2);
      return decode_q5(p + 4, out);
    case GgmlType::kQ8_0:
      return decode_q8_0(p, out);
    case GgmlType::kQ2_K:
      return decode_q2_k(p, out);
    case GgmlType::kQ3_K:
      return decode_q3_k(p, out);
    case GgmlType::kQ4_K:
      return decode_q4_k(p, out);
    case GgmlType::kQ5_K:
      return decode_q5_k(p, out);
    case GgmlType::kQ6_K:
      return decode_q6_k(p, out);
    case GgmlType::kIQ4_XS:
      return decode_iq4_xs(p, out);
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      break;
  }
  throw Error(ErrorCode::kInternal, std::string(type_name(type)) + " has no quantised blocks");
}

void block_values(GgmlType type, const BlockCodes& block, float* out) {
  const float d = float_of_f16(block.d);
  const float min_d = float_of_f16(block.min_d);
  for (int k = 0; k < block.num_elements; ++k) {
    const int code = block.code[k];
    const int s16 = k / 16;
    const int s32 = k / 32;
    switch (type) {
      case GgmlType::kQ4_0:
        out[k] = d * static_cast<float>(code - 8);
        break;
      case GgmlType::kQ5_0:
        out[k] = d * static_cast<float>(code - 16);
        break;
      case GgmlType::kQ4_1:
      case GgmlType::kQ5_1:
        out[k] = d * static_cast<float>(code) + min_d;
        break;
      case GgmlType::kQ8_0:
        out[k] = d * static_cast<float>(static_cast<int8_t>(code));
        break;
      case GgmlType::kIQ4_NL:
        out[k] = d * static_cast<float>(kIq4Values[code]);
        break;
      case GgmlType::kIQ4_XS:
        out[k] = d * static_cast<float>(block.scale[s32]) * static_cast<float>(kIq4Values[code]);
        break;
      case GgmlType::kQ4_K:
      case GgmlType::kQ5_K:
        out[k] = d * static_cast<float>(block.scale[s32]) * static_cast<float>(code) -
                 min_d * static_cast<float>(block.min[s32]);
        break;
      case GgmlType::kQ2_K:
        out[k] = d * static_cast<float>(block.scale[s16]) * static_cast<float>(code) -
                 min_d * static_cast<float>(block.min[s16]);
        break;
      case GgmlType::kQ3_K:
        out[k] = d * static_cast<float>(block.scale[s16]) * static_cast<float>(code - 4);
        break;
      case GgmlType::kQ6_K:
        out[k] = d * static_cast<float>(block.scale[s16]) * static_cast<float>(code - 32);
        break;
      default:
        throw Error(ErrorCode::kInternal, std::string(type_name(type)) + " has no quantised blocks");
    }
  }
}

}  // namespace plait
