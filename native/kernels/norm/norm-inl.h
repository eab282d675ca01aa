// The body of the norm kernels for one ISA; see lanes-inl.h for how it is included.
#pragma once

#include <cmath>

#include "kernels/lanes/lanes-inl.h"
#include "kernels/norm/norm.h"

namespace plait::PLAIT_LANES {

void rms_norm(const float* x, const float* weight, float eps, int32_t num, float* y) {
  F8 sum0 = set1(0.0F);
  F8 sum1 = set1(0.0F);
  for (int32_t i = 0; i < num; i += 16) {
    const F8 a = load(x + i);
    const F8 b = load(x + i + 8);
    sum0 = fma(a, a, sum0);
    sum1 = fma(b, b, sum1);
  }
  const float mean = sum_lanes(add(sum0, sum1)) / static_cast<float>(num);
  const F8 scale = set1(1.0F / std::sqrt(mean + eps));
  for (int32_t i = 0; i < num; i += 8) store(y + i, mul(mul(load(x + i), scale), load(weight + i)));
}

void add(float* x, const float* delta, int32_t num) {
  int32_t i = 0;
  for (; i + 8 <= num; i += 8) store(x + i, add(load(x + i), load(delta + i)));
  for (; i < num; ++i) x[i] += delta[i];
}

}  // namespace plait::PLAIT_LANES
