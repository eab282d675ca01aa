// The body of the activation kernels for one ISA; see lanes-inl.h for how it is included.
#pragma once

#include "kernels/activation/activation.h"
#include "kernels/lanes/exp-inl.h"

namespace plait::PLAIT_LANES {

void gated_act(const float* gate, const float* up, int32_t num, Activation act, float* y) {
  const F8 one = set1(1.0F);
  if (act == Activation::kSilu) {
    for (int32_t i = 0; i < num; i += 8) {
      const F8 x = load(gate + i);
      const F8 silu = div(x, add(one, exp(sub(set1(0.0F), x))));
      store(y + i, mul(silu, load(up + i)));
    }
    return;
  }
  // 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)): no cancellation for large negative x.
  const F8 cubic = set1(0.044715F);
  const F8 minus_two_root = set1(-1.5957691216057308F);  // -2 sqrt(2 / pi)
  for (int32_t i = 0; i < num; i += 8) {
    const F8 x = load(gate + i);
    const F8 inner = mul(x, fma(mul(cubic, x), x, one));
    const F8 gelu = div(x, add(one, exp(mul(minus_two_root, inner))));
    store(y + i, mul(gelu, load(up + i)));
  }
}

}  // namespace plait::PLAIT_LANES
