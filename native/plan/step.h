// One step's input and result: plain data that crosses between the main and the compute thread.
// A StepInput is built by main, moved into the step ring and then owned by compute; a StepResult goes back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sample/sample.h"

namespace plait {

// (Re)starts the sampling state of a slot before the step runs.
struct SlotStart {
  int32_t slot = 0;
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> output_ids;  // tokens produced earlier (a resumed sequence)
  SampleParams params;
};

// Prompt logprob: the logprob of `token` after row `row`, and the `num_top` best.
struct ScoreRow {
  int32_t row = 0;
  int32_t token = 0;
  int32_t num_top = 0;
};

// INVARIANT: what a sequence reads of the KV cache was written before this step, copied by it, or written by
// rows of it that stand no later.
struct StepInput {
  int64_t step_id = 0;
  // CLOCK_MONOTONIC since when there has been something to compute without a break, for the gap before the
  // step; 0: since it was submitted.
  int64_t work_since_ns = 0;
  std::vector<int32_t> token_ids;                   // [T]; -1: the last token sampled in the sequence's slot
  std::vector<int32_t> seq_slots;                   // [S]
  std::vector<int32_t> query_starts;                // [S + 1], rising, from 0 to T
  std::vector<int32_t> context_lens;                // [S]; positions that are filled after this step
  std::vector<std::vector<int32_t>> block_tables;   // [S], blocks by position / block_tokens
  std::vector<int32_t> sample_rows;                 // [R]
  std::vector<int32_t> sample_slots;                // [R]; several slots may sample from one row
  std::vector<std::pair<int32_t, int32_t>> copies;  // block copies (source, target) made before the step
  std::vector<SlotStart> slot_starts;
  std::vector<ScoreRow> scores;
  // Main sets it when nobody waits for any of the step any more: then compute leaves what it has not done
  // yet. Null: it is always done.
  std::shared_ptr<const std::atomic<bool>> is_unwanted;
};

struct StepResult {
  int64_t step_id = 0;
  std::string error;  // empty: it ran
  std::vector<int32_t> slots;
  std::vector<Sampled> samples;  // one per slot; the token may be kNoToken
  std::vector<Sampled> scores;   // one per ScoreRow
  bool was_skipped = false;      // at least in part, since nobody wanted it: the rest means nothing
  int32_t num_tokens = 0;
  int64_t begin_ns = 0;  // CLOCK_MONOTONIC
  int64_t end_ns = 0;
  int64_t forward_ns = 0;  // of it: the fused operations, without sampling
};

}  // namespace plait
