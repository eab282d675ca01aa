// One choice of a request: its tokens, where it stands, what it holds; and the request it belongs to.
//
// Owner: the thread that schedules. A request lives in Endings until all its choices ended and no planned
// step names them any more.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "kv/kv_manager.h"
#include "scheduler/request.h"
#include "scheduler/tenants.h"

namespace plait {

// A sequence that is preempted while steps that use it are in flight gives slot and blocks back at once, but
// waits again (kPreempting) only when the tokens of those steps are known.
enum class SequenceState : uint8_t {
  kPlanned,  // a choice that will be forked when the prompt is computed
  kWaiting,
  kRunning,
  kPreempting,
  kSaving,    // preempted: holds its blocks until they are saved
  kFetching,  // has slot and blocks, whose content is on its way
  kFinished,
};

// Who comes first: lower is better.
struct Rank {
  int32_t priority = 0;
  int64_t arrival = 0;
  int32_t index = 0;
  auto operator<=>(const Rank&) const = default;
};

struct RequestState;

// Prefill and decode are one thing: positions not yet given to a step. tokens.size() + num_pending positions
// have a token (the pending ones are being sampled), the first num_scheduled of them were given to steps.
struct Sequence {
  RequestState* request = nullptr;
  int32_t index = 0;
  int64_t seq_id = 0;
  uint64_t seed = 0;
  Rank rank;
  std::vector<int32_t> tokens;
  int32_t num_prompt = 0;
  int32_t max_len = 0;
  SequenceState state = SequenceState::kPlanned;
  bool has_output = false;
  bool has_left_queue = false;  // had a slot, or ended without
  int32_t slot = -1;
  BlockTable block_table;
  int32_t num_scheduled = 0;
  int32_t num_committed = 0;
  int32_t num_pending = 0;
  int32_t num_in_flight = 0;
  int32_t capacity = 0;         // positions below this may be written without asking the KV manager
  int64_t last_step_id = -1;    // the last one that it decoded in
  bool is_passed_over = false;  // decodes, but not in the step that is planned
  bool needs_start = false;     // its sampling state must be started in the next step
  int64_t ticket = -1;          // what its saved blocks are known by; -1: none are saved
  int32_t num_saved = 0;        // positions that are saved under it
  int64_t fetch_after_step_id = 0;

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  // Back to "nothing computed", as before the first step. What is saved stays saved.
  void reset() {
    num_scheduled = num_committed = num_pending = num_in_flight = capacity = 0;
    needs_start = false;
  }
};

// A request inside the scheduler: its fixed terms and its choices.
struct RequestState {
  int64_t request_id = 0;
  int32_t num_prompt = 0;
  int64_t arrived_ns = 0;
  int64_t deadline_ns = -1;
  std::shared_ptr<Tenant> tenant;
  SampleParams params;  // stop_token_ids: EOS included, sorted
  int32_t num_top_prompt_logprobs = 0;
  bool wants_logprobs = false;
  bool wants_scores = false;
  bool use_cache = true;  // a cached position gives no logits, so who wants scores computes all of them
  std::vector<Sampled> prompt_scores;
  int32_t num_scores_scheduled = 1;  // the first prompt token has none
  int32_t num_cached_tokens = -1;    // -1: not admitted yet
  bool is_forked = false;
  int32_t num_open = 0;
  std::deque<Sequence> choices;  // their addresses stay
};

}  // namespace plait
