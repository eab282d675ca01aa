// Exact conversions between float32 and IEEE binary16, as the F16C instructions do them: to f16 with rounding
// to nearest even, NaN kept as a quiet NaN. Knows: bits. Must not know: vectors, kernels.
#pragma once

#include <bit>
#include <cstdint>

namespace plait {

constexpr uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t mag = bits & 0x7FFFFFFFU;
  uint32_t half = 0;
  if (mag > 0x7F800000U) {
    half = 0x7E00U | ((mag >> 13) & 0x3FFU);
  } else if (mag >= 0x477FF000U) {  // rounds to 65536 or more
    half = 0x7C00U;
  } else if (mag >= 0x38800000U) {  // normal: the carry of the rounding runs into the exponent as it should
    half = (mag - 0x38000000U + 0xFFFU + ((mag >> 13) & 1U)) >> 13;
  } else if (mag > 0x33000000U) {  // subnormal: more than half of the least one
    const uint32_t shift = 126U - (mag >> 23);
    const uint32_t mant = (mag & 0x7FFFFFU) | 0x800000U;
    const uint32_t rest = mant & ((1U << shift) - 1U);
    const uint32_t tie = 1U << (shift - 1U);
    half = mant >> shift;
    half += (rest > tie || (rest == tie && (half & 1U) != 0U)) ? 1U : 0U;
  }
  return static_cast<uint16_t>(sign | half);
}

constexpr float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t mant = half & 0x3FFU;
  if (exponent == 0x1FU) {
    const uint32_t quiet = mant != 0U ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | quiet | (mant << 13));
  }
  if (exponent == 0U) {
    const float value = static_cast<float>(mant) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mant << 13));
}

}  // namespace plait
