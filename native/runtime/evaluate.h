// Logits of a whole text, for quality measurements and tests: the same plan and kernels as serving.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cpu/isa.h"
#include "plan/plan.h"
#include "plan/weights.h"

namespace plait {

// Writes the logits after every token: out [num_tokens][vocab]. `chunk_tokens` is the prefill chunk.
// Throws Error(kInvalidArgument) for ids out of range. Allocates a KV cache of its own.
void evaluate_logits(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights, Isa isa,
                     std::span<const int32_t> token_ids, int32_t chunk_tokens, int32_t num_threads,
                     float* out);

}  // namespace plait
