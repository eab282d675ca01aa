// How many prompt tokens a step takes, and how prompts share them.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace plait {

// Slices below this use the kernels badly: fewer prompts get one instead.
constexpr int32_t kMinSliceTokens = 64;

// Learns the cost of a prompt token, so that decodes are not held up by more than the target time.
class PrefillPacer {
 public:
  PrefillPacer(int32_t max_batch_tokens, double target_step_s);

  // Seconds for one prompt token, 0 before the first measurement.
  double token_s() const { return token_s_; }
  // Learns from a step that ended.
  void observe(int32_t num_prefill_tokens, int32_t num_decodes, double step_s);
  // Prompt tokens for a step that has `num_decodes` decodes; at least 1 when there is room at all.
  int32_t budget(int32_t num_decodes) const;

 private:
  const int32_t max_batch_tokens_;
  const double target_step_s_;
  double token_s_ = 0.0;
};

// Divides `budget` tokens between prompts; `remaining` is what each still needs, oldest first.
//
// The oldest prompt always gets a fair part, the shortest ones get the rest: a short prompt is not held up by
// a long one, and a long one is not starved by a stream of short ones. What a prompt does not need goes to
// the others.
std::vector<int32_t> share_prefill(std::span<const int32_t> remaining, int32_t budget, int32_t max_slice);

}  // namespace plait
