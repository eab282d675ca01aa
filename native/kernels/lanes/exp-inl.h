// exp and tanh on lanes: within 2 ulp (activation_test.cc checks it), the same bits in every ISA.
#pragma once

#include <limits>

#include "kernels/lanes/lanes-inl.h"

namespace plait::PLAIT_LANES {

// exp for x <= 88.37: 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; exp(r) by a degree 6 polynomial that
// keeps 1 + r exact (fitted for the least relative error; its own error is 0.06 ulp).
// 0 below -87.33 (no subnormal results), NaN for NaN.
inline F8 exp_bounded(F8 x) {
  const F8 magic = set1(0x1.8p23F);
  const F8 shifted = fma(x, set1(0x1.715476p+0F), magic);
  const F8 n = sub(shifted, magic);
  F8 r = fma(n, set1(-0x1.62e430p-1F), x);
  r = fma(n, set1(0x1.05c610p-29F), r);
  F8 p = fma(set1(0x1.6a2352p-10F), r, set1(0x1.123a6cp-7F));
  p = fma(p, r, set1(0x1.5558f4p-5F));
  p = fma(p, r, set1(0x1.555490p-3F));
  p = fma(p, r, set1(0x1.fffffcp-2F));
  p = fma(p, r, set1(1.0F));
  p = fma(p, r, set1(1.0F));
  return if_less(x, set1(-87.33F), set1(0.0F), mul(p, exp2_of_low_bits(shifted)));
}

// Infinity above 88.37.
inline F8 exp(F8 x) {
  return if_less(set1(88.37F), x, set1(std::numeric_limits<float>::infinity()), exp_bounded(x));
}

// An odd polynomial up to 0.625 (its own error: 0.07 ulp), beyond it 1 - 2 / (exp(2|x|) + 1).
inline F8 tanh(F8 x) {
  const F8 a = abs(x);
  const F8 z = mul(x, x);
  F8 p = fma(set1(-0x1.76ac1ap-8F), z, set1(0x1.5256d8p-6F));
  p = fma(p, z, set1(-0x1.b84448p-5F));
  p = fma(p, z, set1(0x1.110768p-3F));
  p = fma(p, z, set1(-0x1.555534p-2F));
  const F8 small = fma(mul(p, z), x, x);
  const F8 large = sub(set1(1.0F), div(set1(2.0F), add(exp(add(a, a)), set1(1.0F))));
  return copy_sign(if_less(a, set1(0.625F), small, large), x);
}

}  // namespace plait::PLAIT_LANES
