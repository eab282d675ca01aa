// 16-bit floats to float32, bit for bit as the F16C instructions do it (signalling NaNs come out quiet).
#pragma once

#include <cstdint>
#include <cstring>

namespace plait {

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float float_of_bf16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

inline float float_of_f16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fU;
  const uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    uint32_t magnitude_bits;
    std::memcpy(&magnitude_bits, &magnitude, sizeof magnitude_bits);
    return float_of_bits(sign | magnitude_bits);
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return float_of_bits(sign | 0x7f800000U | quiet | (mantissa << 13));
  }
  return float_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace plait
