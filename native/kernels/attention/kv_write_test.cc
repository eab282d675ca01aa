// What a KV write leaves in a block: every element in its place, rounded as attention.h says, nothing else
// touched, the same bytes in every ISA. And the f16 conversions, which stand on it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/float16.h"
#include "base/test.h"
#include "cpu/isa.h"
#include "kernels/attention/attention.h"

namespace plait {
namespace {

// The least f16 that is not below the largest magnitude / 127.
double scale_of(const std::vector<float>& x) {
  double largest = 0;
  for (const float value : x) largest = std::max(largest, std::fabs(double(value)));
  uint32_t half = 0;  // f16 of one sign are in the order of their bits
  for (uint32_t step = 0x4000; step > 0; step /= 2) {
    if (double(half_to_float(static_cast<uint16_t>(half + step - 1))) < largest / 127.0) half += step;
  }
  return double(half_to_float(static_cast<uint16_t>(half)));
}

// One position of K and V, written by every ISA.
void check_isas_write_alike(const KvLayout& layout, int32_t slot, const std::vector<float>& x) {
  std::vector<std::vector<std::byte>> blocks;
  for (const Isa isa : supported_isas()) {
    std::vector<std::byte> block(layout.block_bytes());
    kv_write_kernel(isa)(layout, block.data(), 0, 0, slot, x.data(), x.data());
    blocks.push_back(std::move(block));
  }
  for (const auto& block : blocks) CHECK(block == blocks.front());
}

TEST(kv_write_places_every_element) {
  for (const Isa isa : supported_isas()) {
    for (const int32_t block_tokens : {16, 32}) {
      const KvLayout layout{.num_layers = 2, .num_kv_heads = 3, .head_dim = 48, .block_tokens = block_tokens};
      std::vector<uint16_t> block(layout.block_bytes() / 2, 0x1234);
      std::vector<uint16_t> expected = block;
      std::vector<float> k(48), v(48);
      for (int32_t d = 0; d < 48; ++d) {
        k[size_t(d)] = 1.0F + float(d) * 0.37F;
        v[size_t(d)] = -3.0F - float(d) * 0.73F;
        expected[layout.k_offset(1, 2) / 2 + size_t(d) * size_t(block_tokens) + 5] =
            float_to_half(k[size_t(d)]);
        expected[layout.v_offset(1, 2) / 2 + 5 * 48 + size_t(d)] = float_to_half(v[size_t(d)]);
      }
      kv_write_kernel(isa)(layout, reinterpret_cast<std::byte*>(block.data()), 1, 2, 5, k.data(), v.data());
      CHECK(block == expected);
    }
  }
}

TEST(kv_write_q8_places_every_byte) {
  for (const Isa isa : supported_isas()) {
    for (const int32_t block_tokens : {16, 32}) {
      const KvLayout layout{.num_layers = 2,
                            .num_kv_heads = 3,
                            .head_dim = 48,
                            .block_tokens = block_tokens,
                            .dtype = KvDtype::kQ8};
      CHECK_EQ(layout.block_bytes(),
               size_t(2 * 3 * block_tokens * (2 * 48 + 2 * 3) + 6 * 32 * (block_tokens % 32 / 16)));
      for (const int32_t slot : {4, 5}) {
        std::vector<std::byte> block(layout.block_bytes(), std::byte{0x5A});
        std::vector<std::byte> expected = block;
        std::vector<float> k(48), v(48);
        for (int32_t d = 0; d < 48; ++d) {
          k[size_t(d)] = 1.0F + float(d) * 0.37F;
          v[size_t(d)] = -3.0F - float(d) * 0.73F;
        }
        const double k_scales[] = {scale_of({k.begin(), k.begin() + 32}),
                                   scale_of({k.begin() + 32, k.end()})};
        const double v_scale = scale_of(v);
        for (size_t d = 0; d < 48; ++d) {
          const size_t k_at = d / 2 * 2 * size_t(block_tokens) + 2 * size_t(slot) + d % 2;
          const size_t v_at = size_t(slot / 2) * 2 * 48 + 2 * d + size_t(slot % 2);
          expected[layout.k_offset(1, 2) + k_at] =
              std::byte(int8_t(std::nearbyint(double(k[d]) / k_scales[d / 32])));
          expected[layout.v_offset(1, 2) + v_at] = std::byte(int8_t(std::nearbyint(double(v[d]) / v_scale)));
        }
        const auto put_scale = [&](size_t offset, double scale) {
          const uint16_t half = float_to_half(float(scale));
          std::memcpy(&expected[offset + 2 * size_t(slot)], &half, 2);
        };
        put_scale(layout.k_scale_offset(1, 2), k_scales[0]);
        put_scale(layout.k_scale_offset(1, 2) + 2 * size_t(block_tokens), k_scales[1]);
        put_scale(layout.v_scale_offset(1, 2), v_scale);
        kv_write_kernel(isa)(layout, block.data(), 1, 2, slot, k.data(), v.data());
        CHECK(block == expected);
      }
    }
  }
}

TEST(kv_write_q8_kernels_agree) {
  const KvLayout layout{
      .num_layers = 1, .num_kv_heads = 1, .head_dim = 16, .block_tokens = 16, .dtype = KvDtype::kQ8};
  std::mt19937 rng(4);
  for (int i = 0; i < 20000; ++i) {
    std::vector<float> x(16);
    const uint32_t exponent = rng() % 255U;
    for (float& value : x) {
      const uint32_t bits = (rng() & 0x807FFFFFU) | (exponent - std::min(exponent, uint32_t(rng() % 4U)))
                                                        << 23;
      std::memcpy(&value, &bits, 4);
    }
    check_isas_write_alike(layout, i % 16, x);
  }
}

// Every f16, and floats around every rounding border, in all ISAs.
TEST(float16_is_exact) {
  static_assert(float_to_half(1.0F) == 0x3C00 && half_to_float(0x3C00) == 1.0F);
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float value = half_to_float(static_cast<uint16_t>(h));
    if (std::isnan(value)) {
      CHECK_EQ(float_to_half(value), h | 0x200U);
      continue;
    }
    CHECK_EQ(float_to_half(value), h);
    const int32_t mant = int32_t(h & 0x3FFU);
    const int32_t exponent = int32_t((h >> 10) & 0x1FU);
    if (exponent == 31) continue;
    const double exact = exponent == 0 ? std::ldexp(mant, -24) : std::ldexp(1024 + mant, exponent - 25);
    CHECK_EQ(double(std::fabs(value)), exact);
    // Half way to the next one up (65520, from the largest, is infinity): ties to even, beyond it up.
    const double next = exponent == 0 ? std::ldexp(mant + 1, -24) : std::ldexp(1025 + mant, exponent - 25);
    const auto middle = static_cast<float>((exact + next) / 2);
    const uint32_t magnitude = h & 0x7FFFU;
    CHECK_EQ(uint32_t(float_to_half(middle)), (magnitude & 1U) == 0 ? magnitude : magnitude + 1);
    CHECK_EQ(uint32_t(float_to_half(std::nextafter(middle, 1e9F))), magnitude + 1);
    CHECK_EQ(uint32_t(float_to_half(std::nextafter(middle, 0.0F))), magnitude);
  }
}

TEST(float16_kernels_agree) {
  const KvLayout layout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 16, .block_tokens = 16};
  std::mt19937 rng(3);
  for (int i = 0; i < 20000; ++i) {
    std::vector<float> x(16);
    for (float& value : x) {
      uint32_t bits = rng();
      if (i % 2 == 0) bits = (bits & 0x8FFFFFFFU) | 0x30000000U;  // around the subnormals of f16
      std::memcpy(&value, &bits, 4);
    }
    check_isas_write_alike(layout, i % 16, x);
  }
}

}  // namespace
}  // namespace plait

TEST_MAIN()
