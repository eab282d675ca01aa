// RMSNorm. Knows: one row. The sum of squares is reduced in 16 lanes (element i in lane i mod 16), the lanes
// by a fixed tree, so that every ISA gives the same bits.
#pragma once

#include <cstdint>

#include "cpu/isa.h"

namespace plait {

// y[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; y may be x. `num` is a multiple of 16.
using RmsNormFn = void (*)(const float* x, const float* weight, float eps, int32_t num, float* y);
// x[i] += delta[i]
using AddFn = void (*)(float* x, const float* delta, int32_t num);

// The kernel of `isa`, which must be supported (cpu/isa.h). Every ISA gives the same bits.
RmsNormFn rms_norm_kernel(Isa isa);
AddFn add_kernel(Isa isa);

}  // namespace plait
