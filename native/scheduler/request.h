// What comes in and what goes out: a request, and what one of its choices produced. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/sample/sample.h"

namespace plait {

enum class FinishReason : uint8_t {
  kNone,    // it goes on
  kStop,    // EOS or a stop token
  kLength,  // max_tokens are there
  kAbort,
  kError,
};

// A prompt and its terms, with everything settled that must not depend on when it runs.
struct Request {
  static constexpr int32_t kMaxChoices = 64;

  int64_t request_id = 0;
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> produced_ids;  // by an earlier run (n == 1); generation goes on after them
  SampleParams params;                // seed: of choice 0; num_logprobs < 0: no logprobs are wanted
  bool ignore_eos = false;
  int32_t n = 1;
  int32_t max_tokens = 1;
  int32_t num_prompt_logprobs = -1;  // -1: none are wanted
  std::string tenant;                // separates prefix caches, shares the engine fairly
  int32_t priority = 0;              // lower runs first
  int64_t arrived_ns = 0;            // CLOCK_MONOTONIC
  int64_t deadline_ns = -1;          // CLOCK_MONOTONIC; -1: none
  bool may_hold = true;              // whether it waits for company when the engine is idle
  bool is_timed = true;              // whether it counts among those whose way to acceptance is timed
};

// Throws Error (kInvalidArgument) for a request that no engine could run; `vocab_size` 0: any token id.
void check_request(const Request& request, int32_t vocab_size);

// The seed of choice `index`; choice 0 has the request's own, so that n does not change it.
uint64_t derive_seed(uint64_t seed, int32_t index);

// What one choice produced since its last output. The last one has a finish reason.
struct Output {
  int64_t request_id = 0;
  int32_t index = 0;
  std::vector<int32_t> token_ids;
  std::vector<Sampled> logprobs;  // one per token id when asked for, else empty
  FinishReason finish_reason = FinishReason::kNone;
  int32_t stop_token_id = -1;  // the EOS or stop token that ended it, -1: none
  int32_t num_cached_tokens = 0;
  // On the first output of index 0 when asked for: one per prompt token but the first, which has none.
  bool has_prompt_scores = false;
  std::vector<Sampled> prompt_scores;
  std::string error;  // empty: none
};

}  // namespace plait
