// Every operation on the widest lanes of this build against plain float arithmetic, bit for bit: zeros of
// both signs, subnormals, infinities, NaNs and values of every size.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "base/test.h"
#include "cpu/isa.h"
#include "kernels/lanes/target.h"

using Eight = std::array<float, 8>;
using Halves = std::array<uint16_t, 8>;

enum class Op { kAdd, kSub, kMul, kDiv, kFma, kMax, kIfLess, kAbs, kCopySign };
constexpr Op kAllOps[] = {Op::kAdd, Op::kSub,    Op::kMul, Op::kDiv,     Op::kFma,
                          Op::kMax, Op::kIfLess, Op::kAbs, Op::kCopySign};

#define PLAIT_LANES lanes
#if PLAIT_HAS_AVX2
#define PLAIT_LANES_AVX2 1
constexpr plait::Isa kTested = plait::Isa::kAvx2;
PLAIT_AVX2_BEGIN
#elif PLAIT_HAS_NEON
#define PLAIT_LANES_NEON 1
constexpr plait::Isa kTested = plait::Isa::kNeon;
#else
constexpr plait::Isa kTested = plait::Isa::kScalar;
#endif

#include "kernels/lanes/lanes-inl.h"

namespace plait::lanes {

inline F8 apply(Op op, F8 a, F8 b, F8 c) {
  switch (op) {
    case Op::kAdd:
      return add(a, b);
    case Op::kSub:
      return sub(a, b);
    case Op::kMul:
      return mul(a, b);
    case Op::kDiv:
      return div(a, b);
    case Op::kFma:
      return fma(a, b, c);
    case Op::kMax:
      return max(a, b);
    case Op::kIfLess:
      return if_less(a, b, c, a);
    case Op::kAbs:
      return abs(a);
    case Op::kCopySign:
      return copy_sign(a, b);
  }
  return a;
}
void run(Op op, const float* a, const float* b, const float* c, float* out) {
  store(out, apply(op, load(a), load(b), load(c)));
}
void to_half(const float* a, uint16_t* out) { store(out, load(a)); }
void from_half(const uint16_t* a, float* out) { store(out, load(a)); }
void power_of_two(const float* a, float* out) { store(out, exp2_of_low_bits(load(a))); }
void indices(float* out) { store(out, add(lane_indices(), set1(1.0F))); }
float sum(const float* a) { return sum_lanes(load(a)); }
float largest(const float* a) { return max_lanes(load(a)); }

}  // namespace plait::lanes

#if PLAIT_HAS_AVX2
PLAIT_AVX2_END
#endif

namespace plait {
namespace {

// Set aside when this CPU cannot run what the build holds.
bool can_run() { return is_isa_supported(kTested); }

float scalar(Op op, float a, float b, float c) {
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kFma:
      return std::fma(a, b, c);
    case Op::kMax:
      return a > b ? a : b;
    case Op::kIfLess:
      return a < b ? c : a;
    case Op::kAbs:
      return std::bit_cast<float>(std::bit_cast<uint32_t>(a) & 0x7FFFFFFFU);
    case Op::kCopySign:
      return std::copysign(a, b);
  }
  return a;
}

// Which of two NaNs an arithmetic operation hands on is nobody's promise; what is chosen is.
bool is_chosen(Op op) { return op == Op::kMax || op == Op::kIfLess || op == Op::kAbs || op == Op::kCopySign; }
bool agree(float got, float want, bool is_exact_nan) {
  if (!is_exact_nan && std::isnan(got) && std::isnan(want)) return true;
  return std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(want);
}

const std::vector<float>& special() {
  using Limits = std::numeric_limits<float>;
  static const std::vector<float> values = [] {
    std::vector<float> all;
    for (const float x :
         {0.0F, Limits::denorm_min(), 1e-40F, std::nextafter(Limits::min(), 0.0F), Limits::min(), 1e-20F,
          0.3F, 1.0F, 1.0F + Limits::epsilon(), 65504.0F, 65520.0F, 1e20F, Limits::max(), Limits::infinity(),
          Limits::quiet_NaN(), std::bit_cast<float>(0x7FC12345U)}) {
      all.push_back(x);
      all.push_back(-x);
    }
    return all;
  }();
  return values;
}

float random_value(std::mt19937& rng) {
  if (rng() % 4 == 0) return special()[rng() % special().size()];
  if (rng() % 2 == 0)
    return std::bit_cast<float>(static_cast<uint32_t>(rng()) | 0x400000U);  // no signalling NaN
  return std::ldexp(static_cast<float>(rng() % 20001) - 10000.0F, static_cast<int>(rng() % 20) - 20);
}

Eight random_eight(std::mt19937& rng) {
  Eight all;
  for (float& x : all) x = random_value(rng);
  return all;
}

TEST(operations) {
  if (!can_run()) return;
  std::mt19937 rng(1);
  for (const Op op : kAllOps) {
    for (int i = 0; i < 20000; ++i) {
      const Eight a = random_eight(rng);
      const Eight b = random_eight(rng);
      const Eight c = random_eight(rng);
      Eight out;
      lanes::run(op, a.data(), b.data(), c.data(), out.data());
      for (size_t lane = 0; lane < 8; ++lane) {
        CHECK(agree(out[lane], scalar(op, a[lane], b[lane], c[lane]), is_chosen(op)));
      }
    }
  }
}

TEST(special_pairs_in_every_lane) {
  if (!can_run()) return;
  for (const Op op : kAllOps) {
    for (const float a : special()) {
      for (const float b : special()) {
        Eight as, bs, out;
        as.fill(a);
        bs.fill(b);
        lanes::run(op, as.data(), bs.data(), bs.data(), out.data());
        for (const float x : out) CHECK(agree(x, scalar(op, a, b, b), is_chosen(op)));
      }
    }
  }
}

TEST(half_conversions) {
  if (!can_run()) return;
  for (uint32_t h = 0; h < 0x10000; h += 8) {
    Halves halves, back;
    Eight floats;
    for (uint32_t i = 0; i < 8; ++i) halves[i] = static_cast<uint16_t>(h + i);
    lanes::from_half(halves.data(), floats.data());
    for (size_t i = 0; i < 8; ++i) CHECK(agree(floats[i], half_to_float(halves[i]), true));
    lanes::to_half(floats.data(), back.data());
    for (size_t i = 0; i < 8; ++i) CHECK_EQ(back[i], float_to_half(floats[i]));
  }
  std::mt19937 rng(2);
  for (int i = 0; i < 50000; ++i) {
    Eight floats;
    Halves halves;
    for (float& x : floats) {
      uint32_t bits = rng();
      if (i % 2 == 0) bits = (bits & 0x8FFFFFFFU) | 0x30000000U;  // around the subnormals of f16
      x = std::bit_cast<float>(bits);
    }
    lanes::to_half(floats.data(), halves.data());
    for (size_t k = 0; k < 8; ++k) CHECK_EQ(halves[k], float_to_half(floats[k]));
  }
}

TEST(reductions_are_the_fixed_tree) {
  if (!can_run()) return;
  std::mt19937 rng(3);
  const auto larger = [](float x, float y) { return x > y ? x : y; };
  for (int i = 0; i < 50000; ++i) {
    const Eight a = random_eight(rng);
    const float want = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
    CHECK(agree(lanes::sum(a.data()), want, false));
    std::array<float, 4> b;
    for (size_t k = 0; k < 4; ++k) b[k] = larger(a[k], a[k + 4]);
    CHECK(agree(lanes::largest(a.data()), larger(larger(b[0], b[2]), larger(b[1], b[3])), true));
  }
}

TEST(powers_of_two_and_indices) {
  if (!can_run()) return;
  for (int n = -126; n <= 127; ++n) {
    Eight a, out;
    a.fill(0x1.8p23F + static_cast<float>(n));
    lanes::power_of_two(a.data(), out.data());
    for (const float x : out) CHECK_EQ(x, std::ldexp(1.0F, n));
  }
  Eight out;
  lanes::indices(out.data());
  for (size_t i = 0; i < 8; ++i) CHECK_EQ(out[i], static_cast<float>(i + 1));
}

}  // namespace
}  // namespace plait

TEST_MAIN()
