// The scheduler's fixed limits: resolved numbers, nothing left open.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace plait {

struct SchedulerLimits {
  int32_t num_blocks = 0;  // blocks in the KV pool
  int32_t block_tokens = 0;
  int32_t max_batch_size = 64;         // sequences per step
  int32_t max_batch_tokens = 512;      // tokens per step, decodes and prefill slices together
  int32_t prefill_chunk_tokens = 512;  // tokens of one prompt per step
  double batch_timeout_s = 0.0;        // how long an idle engine waits for a fuller first batch
  bool enable_prefix_cache = true;
  // Prefill slices shrink so that a step with decodes takes about this long; 0: the pace that the decodes
  // have alone decides (budget.h).
  double target_step_s = 0.0;
  // Bytes of a KV block, where preempted sequences may be saved; 0: they are computed again.
  int64_t kv_block_bytes = 0;
  int32_t vocab_size = 0;  // prompts with other token ids are refused; 0: any
  std::vector<int32_t> eos_token_ids{};
  std::vector<std::pair<std::string, double>> tenant_weights{};  // by name; others have 1

  // Sequences that may run: each must be able to have one token in every step.
  int32_t num_slots() const { return std::min(max_batch_size, max_batch_tokens); }
  // Positions up to the end of the block of the last one: writing is granted by whole blocks.
  int32_t whole_blocks(int32_t num_tokens) const {
    return (num_tokens + block_tokens - 1) / block_tokens * block_tokens;
  }
};

// Throws Error (kInvalidArgument) with the name of the limit that is out of range.
void check_limits(const SchedulerLimits& limits);

}  // namespace plait
