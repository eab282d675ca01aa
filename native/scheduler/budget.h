// How many prompt tokens a step takes, and how prompts share them.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/step_cost.h"

namespace plait {

// Slices below this use the kernels badly: fewer prompts get one instead.
constexpr int32_t kMinSliceTokens = 64;
// A step with decodes takes so many prompt tokens at least, so that prompts move whatever the time says.
constexpr int32_t kLeastPromptTokens = 2;
// Without a target, prompt tokens stretch a step to so many times one of its decodes alone (both the usual
// ones: where steps vary, mixed ones do so as much),
constexpr double kMixedStepRatio = 1.8;
// as it will be when the prompts are through, since contexts grow meanwhile, but at most to so many times
// that of now;
constexpr double kLargestGrowth = 2.0;
// or by so many times more for each prompt that there is per decode: where many wait and few run, the prompts
// are what holds all up.
constexpr double kCrowdRatio = 2.0;

// Mixed steps between two of decodes only.
constexpr int32_t kProbeInterval = 16;

// A prompt that wants a slice.
struct PromptNeed {
  int32_t remaining = 0;  // tokens that it still needs
  int32_t done = 0;       // positions before them
};

// Divides `budget` tokens between prompts, oldest first.
//
// The oldest prompt always gets a fair part, the shortest ones get the rest: a short prompt is not held up by
// a long one, and a long one is not starved by a stream of short ones. What a prompt does not need goes to
// the others.
std::vector<int32_t> share_prefill(std::span<const PromptNeed> prompts, int32_t budget, int32_t max_slice);

// Sizes the prompt slices of a step so that its decodes keep their pace.
class PrefillPacer {
 public:
  // `target_step_s` 0: the pace that the decodes had decides.
  PrefillPacer(int32_t max_slice, double target_step_s);

  // Learns from a step that ran.
  void observe(const StepLoad& load, double step_s);
  // Seconds for one prompt token, 0 before the first measurement.
  double token_s() const { return token_s_; }
  const StepCostModel& costs() const { return costs_; }

  // Tokens for each prompt (oldest first): as many as take `allowance_s`, at most `room`, and `least` of them
  // in any case if there is room. A negative allowance has no end.
  std::vector<int32_t> share(std::span<const PromptNeed> prompts, int32_t room, double allowance_s,
                             int32_t least) const;
  // What that takes without a bound on time.
  double cost_s(std::span<const PromptNeed> prompts, int32_t room) const;
  // Whether a step with decodes should go without prompt tokens, so that the costs of decodes are not lost
  // sight of: during a long prompt their contexts grow, and what is left of a mixed step is taken for the
  // prompt's.
  bool should_probe(int32_t num_decodes) const {
    return num_decodes > 0 && costs_.num_mixed_steps() >= kProbeInterval;
  }
  // Seconds that tokens of these prompts may add to a step that has these decodes; negative: no limit, since
  // there are no decodes or nothing was learned yet.
  double allowance_s(int32_t num_decodes, int64_t decode_positions,
                     std::span<const PromptNeed> prompts) const;

 private:
  double grown_decode_s(int32_t num_decodes, int64_t decode_positions,
                        std::span<const PromptNeed> prompts) const;

  const int32_t max_slice_;
  const double target_step_s_;
  StepCostModel costs_;
  double token_s_ = 0.0;
};

}  // namespace plait
