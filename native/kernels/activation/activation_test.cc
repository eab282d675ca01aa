// Gated activations: accuracy of exp and tanh as they appear in them, and the same bits in every ISA.
#include "kernels/activation/activation.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/test.h"
#include "cpu/isa.h"

#define PLAIT_LANES scalar
#include "kernels/lanes/exp-inl.h"

namespace plait {
namespace {

double ulps(float got, double exact) {
  if (got == exact) return 0;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
  return std::fabs(got - exact) / unit;
}

template <typename Lanes, typename Exact>
double worst_ulps(float lo, float hi, Lanes lanes, Exact exact) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(lo, hi);
  double worst = 0;
  for (int i = 0; i < 300000; ++i) {
    const float x = uniform(rng);
    worst = std::max(worst, ulps(lanes(scalar::set1(x)).v[0], exact(double(x))));
  }
  return worst;
}

TEST(exp_is_accurate) {
  const auto exact = [](double x) { return std::exp(x); };
  CHECK(worst_ulps(-87.0F, 88.3F, scalar::exp, exact) < 1.5);
  CHECK(worst_ulps(-1.0F, 1.0F, scalar::exp, exact) < 1.5);
  CHECK(worst_ulps(-20.0F, 0.0F, scalar::exp_bounded, exact) < 1.5);
}

TEST(tanh_is_accurate) {
  const auto exact = [](double x) { return std::tanh(x); };
  CHECK(worst_ulps(-0.7F, 0.7F, scalar::tanh, exact) < 2.0);
  CHECK(worst_ulps(-12.0F, 12.0F, scalar::tanh, exact) < 2.0);
  CHECK(worst_ulps(-1e-3F, 1e-3F, scalar::tanh, exact) < 1.0);
}

TEST(exp_and_tanh_at_the_ends) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto exp = [](float x) { return scalar::exp(scalar::set1(x)).v[0]; };
  const auto tanh = [](float x) { return scalar::tanh(scalar::set1(x)).v[0]; };
  CHECK_EQ(exp(0.0F), 1.0F);
  CHECK_EQ(exp(-inf), 0.0F);
  CHECK_EQ(exp(-1e30F), 0.0F);
  CHECK_EQ(exp(-88.0F), 0.0F);
  CHECK(exp(-87.3F) >= std::numeric_limits<float>::min());
  CHECK_EQ(exp(inf), inf);
  CHECK_EQ(exp(1e30F), inf);
  CHECK(std::isfinite(exp(88.36F)));
  CHECK(std::isnan(exp(std::nanf(""))));
  CHECK_EQ(tanh(inf), 1.0F);
  CHECK_EQ(tanh(-inf), -1.0F);
  CHECK_EQ(tanh(-1e30F), -1.0F);
  CHECK(std::signbit(tanh(-0.0F)));
  CHECK(std::isnan(tanh(std::nanf(""))));
}

std::vector<float> gated(Isa isa, const std::vector<float>& gate, const std::vector<float>& up,
                         Activation act) {
  std::vector<float> y(gate.size());
  gated_act_kernel(isa)(gate.data(), up.data(), static_cast<int32_t>(gate.size()), act, y.data());
  return y;
}

TEST(gated_act_is_accurate) {
  std::mt19937 rng(2);
  std::uniform_real_distribution<float> uniform(-9.0F, 9.0F);
  std::vector<float> gate(4096), up(4096);
  for (float& x : gate) x = uniform(rng);
  for (float& x : up) x = uniform(rng);
  const std::vector<float> silu = gated(Isa::kScalar, gate, up, Activation::kSilu);
  const std::vector<float> gelu = gated(Isa::kScalar, gate, up, Activation::kGeluTanh);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double x = gate[i];
    const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    CHECK(ulps(silu[i], x / (1 + std::exp(-x)) * up[i]) < 5);
    // The exponent 2u carries its own rounding: its relative error grows with |u|.
    CHECK(ulps(gelu[i], x / (1 + std::exp(-2 * u)) * up[i]) < 5 + 4 * std::fabs(u));
  }
}

TEST(gated_act_same_bits_in_every_isa) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0.0F, 8.0F);
  const float inf = std::numeric_limits<float>::infinity();
  for (const size_t num : {8, 16, 24, 1536, 4096}) {
    std::vector<float> gate(num), up(num);
    for (float& x : gate) x = normal(rng);
    for (float& x : up) x = normal(rng);
    gate[0] = -100.0F;
    gate[1] = 100.0F;
    gate[2] = -0.0F;
    gate[3] = 1e30F;
    gate[4] = -1e30F;
    gate[5] = inf;
    for (const Activation act : {Activation::kSilu, Activation::kGeluTanh}) {
      const std::vector<float> a = gated(Isa::kScalar, gate, up, act);
      CHECK_EQ(std::fabs(a[4]), 0.0F);
      for (const Isa isa : supported_isas()) {
        const std::vector<float> b = gated(isa, gate, up, act);
        CHECK(std::memcmp(a.data(), b.data(), num * sizeof(float)) == 0);
        std::vector<float> in_place = gate;
        gated_act_kernel(isa)(in_place.data(), up.data(), static_cast<int32_t>(num), act, in_place.data());
        CHECK(std::memcmp(a.data(), in_place.data(), num * sizeof(float)) == 0);
      }
    }
  }
}

}  // namespace
}  // namespace plait

TEST_MAIN()
