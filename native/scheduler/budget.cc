#include "scheduler/budget.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace plait {

namespace {

// Steps with fewer prompt tokens say little about the cost of a prompt token.
constexpr int32_t kMinMeasuredTokens = 16;
constexpr double kSmoothing = 0.3;

}  // namespace

PrefillPacer::PrefillPacer(int32_t max_batch_tokens, double target_step_s)
    : max_batch_tokens_(max_batch_tokens), target_step_s_(target_step_s) {}

void PrefillPacer::observe(int32_t num_prefill_tokens, int32_t num_decodes, double step_s) {
  if (num_prefill_tokens < kMinMeasuredTokens || step_s <= 0.0) return;
  const double token_s = step_s / (num_prefill_tokens + num_decodes);
  token_s_ = token_s_ == 0.0 ? token_s : token_s_ + kSmoothing * (token_s - token_s_);
}

int32_t PrefillPacer::budget(int32_t num_decodes) const {
  const int32_t room = max_batch_tokens_ - num_decodes;
  if (num_decodes == 0 || token_s_ == 0.0) return room;
  const double timed = std::min(target_step_s_ / token_s_, 1e9) - num_decodes;
  return std::min(room, std::max(static_cast<int32_t>(timed), kMinSliceTokens));
}

std::vector<int32_t> share_prefill(std::span<const int32_t> remaining, int32_t budget, int32_t max_slice) {
  const auto num_prompts = static_cast<int32_t>(remaining.size());
  std::vector<int32_t> shares(remaining.size(), 0);
  if (remaining.empty() || budget <= 0) return shares;
  const auto is_shorter = [&](int32_t a, int32_t b) { return remaining[a] < remaining[b]; };
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
    shares[idx] = std::min({remaining[idx], max_slice, std::max(left / (num_sharers - i), 1), left});
    left -= shares[idx];
  }
  // What is left because sharers were short or at their cap goes to the next ones.
  sharers.insert(sharers.end(), order.begin() + (num_sharers - 1), order.end());
  for (const int32_t idx : sharers) {
    if (left <= 0) break;
    const int32_t more = std::min({remaining[idx] - shares[idx], max_slice - shares[idx], left});
    shares[idx] += more;
    left -= more;
  }
  return shares;
}

}  // namespace plait
