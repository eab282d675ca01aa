// Gated activations: y[i] = act(gate[i]) * up[i].
#pragma once

#include <cstdint>

#include "cpu/isa.h"

namespace plait {

enum class Activation : uint8_t {
  kSilu,      // x / (1 + exp(-x))
  kGeluTanh,  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
};

// exp is our own polynomial, the same operations in every ISA. num is a multiple of 8; y may be gate or up.
using GatedActFn = void (*)(const float* gate, const float* up, int32_t num, Activation act, float* y);

// The kernel of `isa`, which must be supported (cpu/isa.h). Every ISA gives the same bits.
GatedActFn gated_act_kernel(Isa isa);

}  // namespace plait
