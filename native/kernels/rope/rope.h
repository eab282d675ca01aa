// Rotary position embedding (Su et al., arXiv:2104.09864) of one head.
#pragma once

#include <cstdint>

#include "cpu/isa.h"

namespace plait {

enum class RopeStyle : uint8_t {
  kNone,
  kInterleaved,  // pairs (2i, 2i+1): GGUF files of architecture llama
  kHalf,         // pairs (i, i + rot_dim/2): gemma3, qwen and others ("neox")
};

// Rotates x[0..rot_dim) in place; cos and sin hold rot_dim/2 values for this token's position.
using RopeFn = void (*)(float* x, int32_t rot_dim, const float* cos, const float* sin, RopeStyle style);

// The kernel of `isa`, which must be supported (cpu/isa.h). Every ISA gives the same bits.
RopeFn rope_kernel(Isa isa);

}  // namespace plait
