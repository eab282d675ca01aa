#include "scheduler/budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace plait {

namespace {

// Steps with fewer prompt tokens say little about the cost of a prompt token.
constexpr int32_t kMinMeasuredTokens = 16;
constexpr double kSmoothing = 0.3;

double shares_cost_s(const StepCostModel& costs, std::span<const PromptNeed> prompts,
                     std::span<const int32_t> shares) {
  int32_t num_tokens = 0;
  int64_t positions = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    num_tokens += shares[i];
    positions += attended_positions(prompts[i].done, int64_t{prompts[i].done} + shares[i]);
  }
  return costs.prefill_s(num_tokens, positions);
}

}  // namespace

std::vector<int32_t> share_prefill(std::span<const PromptNeed> prompts, int32_t budget, int32_t max_slice) {
  const auto num_prompts = static_cast<int32_t>(prompts.size());
  std::vector<int32_t> shares(prompts.size(), 0);
  if (prompts.empty() || budget <= 0) return shares;
  const auto is_shorter = [&](int32_t a, int32_t b) { return prompts[a].remaining < prompts[b].remaining; };
  // The sorts are stable: equally short prompts go by age.
  std::vector<int32_t> order(num_prompts - 1);
  std::iota(order.begin(), order.end(), 1);
  std::stable_sort(order.begin(), order.end(), is_shorter);
  // Two at least: a budget that a time target cuts down must not let one prompt block all others. But never
  // more than there are tokens: the oldest must get one.
  const int32_t num_sharers = std::min({num_prompts, std::max(2, budget / kMinSliceTokens), budget});
  std::vector<int32_t> sharers = {0};
  sharers.insert(sharers.end(), order.begin(), order.begin() + (num_sharers - 1));
  std::stable_sort(sharers.begin(), sharers.end(), is_shorter);
  int32_t left = budget;
  for (int32_t i = 0; i < num_sharers; ++i) {
    const int32_t idx = sharers[i];
    shares[idx] = std::min({prompts[idx].remaining, max_slice, std::max(left / (num_sharers - i), 1), left});
    left -= shares[idx];
  }
  // What is left because sharers were short or at their cap goes to the next ones.
  sharers.insert(sharers.end(), order.begin() + (num_sharers - 1), order.end());
  for (const int32_t idx : sharers) {
    if (left <= 0) break;
    const int32_t more = std::min({prompts[idx].remaining - shares[idx], max_slice - shares[idx], left});
    shares[idx] += more;
    left -= more;
  }
  return shares;
}

PrefillPacer::PrefillPacer(int32_t max_slice, double target_step_s)
    : max_slice_(max_slice), target_step_s_(target_step_s) {}

void PrefillPacer::observe(const StepLoad& load, double step_s) {
  costs_.observe(load, step_s);
  if (load.num_prefills < kMinMeasuredTokens || step_s <= 0.0) return;
  const double token_s = step_s / (load.num_prefills + load.num_decodes);
  token_s_ = token_s_ == 0.0 ? token_s : token_s_ + kSmoothing * (token_s - token_s_);
}

double PrefillPacer::cost_s(std::span<const PromptNeed> prompts, int32_t room) const {
  return shares_cost_s(costs_, prompts, share_prefill(prompts, room, max_slice_));
}

std::vector<int32_t> PrefillPacer::share(std::span<const PromptNeed> prompts, int32_t room,
                                         double allowance_s, int32_t least) const {
  std::vector<int32_t> shares = share_prefill(prompts, room, max_slice_);
  const auto fits = [&] {
    return allowance_s < 0.0 || shares_cost_s(costs_, prompts, shares) <= allowance_s;
  };
  if (fits()) return shares;
  // The largest budget that fits, by halving: what a token costs depends on where its prompt stands.
  int32_t low = std::clamp(room, 0, least);
  int32_t high = std::accumulate(shares.begin(), shares.end(), 0);
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    shares = share_prefill(prompts, middle, max_slice_);
    (fits() ? low : high) = middle;
  }
  return share_prefill(prompts, low, max_slice_);
}

double PrefillPacer::allowance_s(int32_t num_decodes, int64_t decode_positions,
                                 std::span<const PromptNeed> prompts) const {
  if (num_decodes == 0 || !costs_.knows_prefills()) return -1.0;
  const double decode_s = costs_.decode_s(num_decodes, decode_positions);
  if (target_step_s_ > 0.0) return std::max(target_step_s_ - decode_s, 0.0);
  if (!costs_.knows_decodes()) return -1.0;
  const double step_s = kMixedStepRatio * grown_decode_s(num_decodes, decode_positions, prompts);
  const double crowd_s = kCrowdRatio * static_cast<double>(prompts.size()) / num_decodes * decode_s;
  return std::max(step_s - decode_s, crowd_s);
}

// What the decodes will take when the prompts are through. If a step of theirs takes d now and g more with
// each step, and mixed steps are stretched to r times what they take after n steps, which leaves r (d + g n)
// - (d + g n / 2) of one for the prompts, then these are through after n steps where n ((r - 1) d + (r - 1/2)
// g n) is what they cost.
double PrefillPacer::grown_decode_s(int32_t num_decodes, int64_t decode_positions,
                                    std::span<const PromptNeed> prompts) const {
  const double d = costs_.decode_s(num_decodes, decode_positions);
  const double g = costs_.decode_s(num_decodes, decode_positions + num_decodes) - d;
  if (g <= 0.0) return d;
  int64_t num_tokens = 0;
  int64_t positions = 0;
  for (const PromptNeed& prompt : prompts) {
    num_tokens += prompt.remaining;
    positions += attended_positions(prompt.done, int64_t{prompt.done} + prompt.remaining);
  }
  const double half = (kMixedStepRatio - 1.0) * d / 2.0;
  const double slope = (kMixedStepRatio - 0.5) * g;
  const double n = (std::sqrt(half * half + slope * costs_.prefill_s(num_tokens, positions)) - half) / slope;
  return std::min(d + g * n, kLargestGrowth * d);
}

}  // namespace plait
