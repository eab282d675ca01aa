#include "kernels/norm/norm.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/test.h"
#include "cpu/isa.h"

namespace plait {
namespace {

std::vector<float> random_row(std::mt19937& rng, int32_t num, float scale) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> row(static_cast<size_t>(num));
  for (float& x : row) x = normal(rng);
  return row;
}

TEST(rms_norm_matches_double_and_every_isa) {
  std::mt19937 rng(1);
  for (const int32_t num : {16, 32, 48, 64, 256, 576, 640, 2048, 4112}) {
    for (const float scale : {1e-3F, 1.0F, 1e4F}) {
      const std::vector<float> x = random_row(rng, num, scale);
      const std::vector<float> weight = random_row(rng, num, 1.0F);
      std::vector<float> y(x.size());
      rms_norm_kernel(Isa::kScalar)(x.data(), weight.data(), 1e-5F, num, y.data());
      double sum = 0;
      for (const float v : x) sum += double(v) * v;
      const double factor = 1 / std::sqrt(sum / num + double(1e-5F));
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = x[i] * factor * weight[i];
        CHECK(std::fabs(y[i] - exact) <= 1e-6 * std::fabs(exact) + 1e-30);
      }
      for (const Isa isa : supported_isas()) {
        std::vector<float> in_place = x;
        rms_norm_kernel(isa)(in_place.data(), weight.data(), 1e-5F, num, in_place.data());
        CHECK(std::memcmp(in_place.data(), y.data(), x.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST(rms_norm_of_zeros_is_zero) {
  const std::vector<float> zeros(32, 0.0F);
  std::vector<float> y(32, 1.0F);
  rms_norm_kernel(Isa::kScalar)(zeros.data(), zeros.data(), 1e-6F, 32, y.data());
  for (const float v : y) CHECK_EQ(v, 0.0F);
}

TEST(add_any_length) {
  std::mt19937 rng(2);
  for (int32_t num = 0; num <= 40; ++num) {
    const std::vector<float> x = random_row(rng, num, 1.0F);
    const std::vector<float> delta = random_row(rng, num, 1.0F);
    for (const Isa isa : supported_isas()) {
      std::vector<float> y = x;
      add_kernel(isa)(y.data(), delta.data(), num);
      for (size_t i = 0; i < x.size(); ++i) CHECK_EQ(y[i], x[i] + delta[i]);
    }
  }
}

}  // namespace
}  // namespace plait

TEST_MAIN()
