#include "kernels/rope/rope.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/test.h"
#include "cpu/isa.h"

namespace plait {
namespace {

struct Case {
  std::vector<float> x, cos, sin;
};

Case random_case(std::mt19937& rng, int32_t rot_dim) {
  std::normal_distribution<float> normal;
  Case c;
  c.x.resize(static_cast<size_t>(rot_dim + 5));
  for (float& v : c.x) v = normal(rng);
  for (int32_t i = 0; i < rot_dim / 2; ++i) {
    const double angle = 100.0 * normal(rng);
    c.cos.push_back(static_cast<float>(std::cos(angle)));
    c.sin.push_back(static_cast<float>(std::sin(angle)));
  }
  return c;
}

TEST(rope_matches_double_and_every_isa) {
  std::mt19937 rng(1);
  for (const int32_t rot_dim : {2, 4, 6, 8, 14, 16, 30, 32, 62, 64, 80, 128, 256}) {
    for (const RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
      const Case c = random_case(rng, rot_dim);
      std::vector<float> y = c.x;
      rope_kernel(Isa::kScalar)(y.data(), rot_dim, c.cos.data(), c.sin.data(), style);
      for (int32_t i = 0; i < rot_dim / 2; ++i) {
        const auto a = static_cast<size_t>(style == RopeStyle::kHalf ? i : 2 * i);
        const auto b = static_cast<size_t>(style == RopeStyle::kHalf ? i + rot_dim / 2 : 2 * i + 1);
        const double cos = c.cos[static_cast<size_t>(i)];
        const double sin = c.sin[static_cast<size_t>(i)];
        CHECK(std::fabs(y[a] - (c.x[a] * cos - c.x[b] * sin)) < 1e-6);
        CHECK(std::fabs(y[b] - (c.x[a] * sin + c.x[b] * cos)) < 1e-6);
      }
      for (size_t i = static_cast<size_t>(rot_dim); i < c.x.size(); ++i) CHECK_EQ(y[i], c.x[i]);
      for (const Isa isa : supported_isas()) {
        std::vector<float> z = c.x;
        rope_kernel(isa)(z.data(), rot_dim, c.cos.data(), c.sin.data(), style);
        CHECK(std::memcmp(y.data(), z.data(), y.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST(rope_none_changes_nothing) {
  std::mt19937 rng(2);
  const Case c = random_case(rng, 64);
  for (const Isa isa : supported_isas()) {
    std::vector<float> y = c.x;
    rope_kernel(isa)(y.data(), 64, c.cos.data(), c.sin.data(), RopeStyle::kNone);
    CHECK(y == c.x);
  }
}

}  // namespace
}  // namespace plait

TEST_MAIN()
