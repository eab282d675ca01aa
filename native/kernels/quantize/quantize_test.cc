// Quantised activations: the scalar kernel against the contract, the others against its bits.
#include "kernels/quantize/quantize.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/test.h"

using namespace plait;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Stored {
  int8_t q[kBlock];
  float scale;
  float sum;
  int16_t half_sum[2];
};

// Room for the activations with guard bytes behind them.
struct Room {
  std::vector<std::byte> bytes;
  Acts acts;
  Room(int32_t num_tokens, int32_t cols) : bytes(acts_q8_bytes(num_tokens, cols) + 64, std::byte{0x5a}) {
    acts = {bytes.data(), nullptr, num_tokens, cols};
  }
  // The record as acts.h draws it, read without the code under test.
  Stored read(int32_t t, int32_t block) const {
    const int32_t r = acts.num_tokens - t / 8 * 8 < 8 ? acts.num_tokens % 8 : 8;
    const std::byte* record = bytes.data() + t / 8 * 8 * 44 * (acts.cols / 32) + block * r * 44;
    const int32_t i = t % 8;
    Stored s;
    std::memcpy(s.q, record + i * 32, 32);
    std::memcpy(&s.scale, record + r * 32 + i * 4, 4);
    std::memcpy(&s.sum, record + r * 36 + i * 4, 4);
    std::memcpy(s.half_sum, record + r * 40 + i * 4, 4);
    return s;
  }
  bool is_guard_whole() const {
    for (size_t i = bytes.size() - 64; i < bytes.size(); ++i) {
      if (bytes[i] != std::byte{0x5a}) return false;
    }
    return true;
  }
};

std::vector<float> random_row(int32_t cols, uint32_t seed) {
  std::vector<float> x;
  for (int32_t k = 0; k < cols; ++k) {
    seed = seed * 1664525U + 1013904223U;
    x.push_back((static_cast<float>(seed >> 8) * 0x1p-23F - 1.0F) *
                std::ldexp(1.0F, static_cast<int>(seed >> 3 & 7)));
  }
  return x;
}

Stored quantize_one(Isa isa, const std::vector<float>& x) {
  Room room(1, kBlock);
  quantize_kernel(isa)(x.data(), 0, 0, kBlock, room.acts);
  CHECK(room.is_guard_whole());
  return room.read(0, 0);
}

}  // namespace

TEST(follows_the_contract) {
  for (const Isa isa : supported_isas()) {
    for (uint32_t seed = 1; seed < 200; ++seed) {
      const auto x = random_row(kBlock, seed);
      const Stored s = quantize_one(isa, x);
      float max_abs = 0.0F;
      for (const float v : x) max_abs = std::fmax(max_abs, std::fabs(v));
      CHECK_EQ(s.scale, max_abs / 127.0F);
      int sums[2] = {0, 0};
      for (int32_t k = 0; k < kBlock; ++k) {
        CHECK_EQ(static_cast<float>(s.q[k]), std::nearbyint(x[static_cast<size_t>(k)] * (1.0F / s.scale)));
        sums[k / 16] += s.q[k];
      }
      CHECK_EQ(s.half_sum[0], sums[0]);
      CHECK_EQ(s.half_sum[1], sums[1]);
      CHECK_EQ(s.sum, s.scale * static_cast<float>(sums[0] + sums[1]));
    }
  }
}

TEST(rounds_half_to_even) {
  std::vector<float> x(kBlock, 0.0F);
  x[0] = 127.0F;  // scale 1
  x[1] = 0.5F;
  x[2] = 1.5F;
  x[3] = 2.5F;
  x[4] = -0.5F;
  x[5] = -1.5F;
  x[31] = -127.0F;
  for (const Isa isa : supported_isas()) {
    const Stored s = quantize_one(isa, x);
    CHECK_EQ(s.scale, 1.0F);
    const int expected[] = {127, 0, 2, 2, 0, -2};
    for (size_t k = 0; k < 6; ++k) CHECK_EQ(int{s.q[k]}, expected[k]);
    CHECK_EQ(int{s.q[31]}, -127);
  }
}

TEST(layout_of_every_tile_width_and_part) {
  for (int32_t num_tokens = 1; num_tokens <= 19; ++num_tokens) {
    constexpr int32_t kCols = 96;
    std::vector<std::vector<std::byte>> results;
    for (const Isa isa : supported_isas()) {
      Room room(num_tokens, kCols);
      for (int32_t t = 0; t < num_tokens; ++t) {
        const auto x = random_row(kCols, static_cast<uint32_t>(t + 1));
        quantize_kernel(isa)(x.data() + 32, t, 32, 96, room.acts);  // in two parts, as two tasks would
        quantize_kernel(isa)(x.data(), t, 0, 32, room.acts);
      }
      CHECK(room.is_guard_whole());
      for (int32_t t = 0; t < num_tokens; ++t) {
        const auto x = random_row(kCols, static_cast<uint32_t>(t + 1));
        for (int32_t block = 0; block < 3; ++block) {
          const Stored alone = quantize_one(isa, {x.begin() + block * 32, x.begin() + block * 32 + 32});
          const Stored stored = room.read(t, block);
          CHECK(std::memcmp(&alone, &stored, sizeof alone) == 0);
        }
      }
      results.push_back(room.bytes);
    }
    for (const auto& result : results) CHECK(result == results[0]);
  }
}

TEST(small_and_huge_values) {
  for (const float magnitude : {0.0F, 1e-45F, 1e-38F, 1e-31F, 1e-30F, 1.1e-30F, 1e30F, 3.4e38F}) {
    std::vector<Stored> results;
    for (const Isa isa : supported_isas()) {
      std::vector<float> x(kBlock, magnitude);
      x[7] = -magnitude;
      results.push_back(quantize_one(isa, x));
      const Stored& s = results.back();
      CHECK(std::memcmp(&s, results.data(), sizeof s) == 0);
      const bool is_zero = magnitude < kMinActMax;
      CHECK_EQ(int{s.q[0]}, is_zero ? 0 : 127);
      CHECK_EQ(int{s.q[7]}, is_zero ? 0 : -127);
      CHECK_EQ(s.scale, is_zero ? 0.0F : magnitude / 127.0F);
    }
  }
}

TEST(not_finite_marks_the_block_only) {
  for (const float bad : {kInf, -kInf, kNan, -kNan}) {
    for (const Isa isa : supported_isas()) {
      for (size_t at = 0; at < kBlock; ++at) {
        auto x = random_row(3 * kBlock, 9);
        x[kBlock + at] = bad;
        Room room(1, 3 * kBlock);
        quantize_kernel(isa)(x.data(), 0, 0, 3 * kBlock, room.acts);
        const Stored s = room.read(0, 1);
        CHECK(std::isnan(s.scale));
        CHECK(std::isnan(s.sum));
        for (const int8_t q : s.q) CHECK_EQ(int{q}, 0);
        CHECK(std::isfinite(room.read(0, 0).scale));
        CHECK(std::isfinite(room.read(0, 2).sum));
      }
    }
  }
}

TEST(writes_f32_rows_when_asked) {
  for (const Isa isa : supported_isas()) {
    const auto x = random_row(64, 3);
    std::vector<float> rows(2 * 64, -1.0F);
    const Acts acts{nullptr, rows.data(), 2, 64};
    quantize_kernel(isa)(x.data() + 32, 1, 32, 64, acts);
    quantize_kernel(isa)(x.data(), 1, 0, 32, acts);
    CHECK(std::memcmp(rows.data() + 64, x.data(), 64 * sizeof(float)) == 0);
    for (size_t i = 0; i < 64; ++i) CHECK_EQ(rows[i], -1.0F);
  }
}

TEST_MAIN()
