#include "scheduler/budget.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/test.h"

using namespace plait;

namespace {

std::vector<int32_t> share(const std::vector<int32_t>& remaining, int32_t budget, int32_t max_slice = 512) {
  std::vector<PromptNeed> prompts;
  for (const int32_t need : remaining) prompts.push_back({need, 0});
  return share_prefill(prompts, budget, max_slice);
}

// 1 ms for each token, 1 us for each position of a prompt, `decode_position_s` for each of a decode.
struct Costs {
  double decode_position_s = 0.0;
  double noise = 0.0;  // of each step, by turns more and less
};

StepLoad load_of(int32_t num_decodes, int32_t begin, int32_t num_prefills, int32_t context = 100) {
  return {num_decodes, int64_t{num_decodes} * context, num_prefills,
          attended_positions(begin, begin + num_prefills)};
}

double cost_s(const StepLoad& load, const Costs& costs = {}) {
  return 1e-3 * (load.num_decodes + load.num_prefills) + 1e-6 * static_cast<double>(load.prefill_positions) +
         costs.decode_position_s * static_cast<double>(load.decode_positions);
}

void teach(PrefillPacer& pacer, const Costs& costs = {}) {
  for (int32_t i = 0; i < 400; ++i) {
    const double factor = 1.0 + (i % 2 == 0 ? costs.noise : -costs.noise);
    const int32_t context = 1 + i * 91 % 2000;
    const StepLoad decodes = load_of(1 + i % 64, 0, 0, context);
    pacer.observe(decodes, factor * cost_s(decodes, costs));
    const StepLoad mixed = load_of(1 + i % 64, i * 37 % 6000, 1 + i * 7 % 300, context);
    pacer.observe(mixed, factor * cost_s(mixed, costs));
  }
}

int32_t tokens_for(const PrefillPacer& pacer, int32_t num_decodes, int32_t begin) {
  const PromptNeed prompt{100'000, begin};
  const std::span<const PromptNeed> prompts{&prompt, 1};
  const std::vector<int32_t> shares =
      pacer.share(prompts, 1000 - num_decodes,
                  pacer.allowance_s(num_decodes, int64_t{num_decodes} * 100, prompts), kLeastPromptTokens);
  CHECK_EQ(shares.size(), size_t{1});
  return shares[0];
}

bool is_between(int32_t value, int32_t low, int32_t high) { return low <= value && value <= high; }

}  // namespace

TEST(shares_use_the_budget_and_keep_the_caps) {
  std::mt19937 rng(1);
  const auto draw = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(rng);
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<int32_t> remaining(draw(0, 40));
    const int32_t longest = draw(1, 5000);
    for (int32_t& need : remaining) need = draw(1, longest);
    const int32_t budget = draw(0, 1000);
    const int32_t max_slice = draw(1, 600);
    const std::vector<int32_t> shares = share(remaining, budget, max_slice);
    CHECK_EQ(shares.size(), remaining.size());
    int32_t sum = 0, sum_caps = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      const int32_t cap = std::min(remaining[i], max_slice);
      CHECK(shares[i] >= 0 && shares[i] <= cap);
      sum += shares[i];
      sum_caps += cap;
    }
    CHECK_EQ(sum, std::min(budget, sum_caps));
    if (remaining.empty() || budget == 0) continue;
    CHECK(shares[0] > 0);  // the oldest prompt always moves
    const int32_t fair = budget / std::max(2, budget / kMinSliceTokens);
    CHECK(shares[0] >= std::min({remaining[0], max_slice, fair}));
  }
}

TEST(shares_by_example) {
  using Shares = std::vector<int32_t>;
  CHECK(share({500}, 100) == (Shares{100}));
  CHECK(share({2, 1}, 1) == (Shares{1, 0}));
  CHECK(share({1000, 20}, 100) == (Shares{80, 20}));
  CHECK(share({30, 30, 30}, 200) == (Shares{30, 30, 30}));
  CHECK(share({128, 128, 128, 128}, 256) == (Shares{64, 64, 64, 64}));
  CHECK(share({400, 300, 200, 100}, 128) == (Shares{64, 0, 0, 64}));
}

TEST(nothing_is_paced_before_something_is_known) {
  PrefillPacer pacer(1000, 0.1);
  CHECK_EQ(pacer.token_s(), 0.0);
  CHECK_EQ(tokens_for(pacer, 8, 0), 992);
  pacer.observe(load_of(0, 0, 400), cost_s(load_of(0, 0, 400)));
  CHECK(std::abs(pacer.token_s() - 0.0012) < 1e-5);
  CHECK_EQ(tokens_for(pacer, 0, 0), 1000);  // nobody to hold up
  CHECK(tokens_for(pacer, 8, 0) < 120);
  PrefillPacer derived(1000, 0.0);
  derived.observe(load_of(0, 0, 400), cost_s(load_of(0, 0, 400)));
  CHECK_EQ(tokens_for(derived, 8, 0), 992);  // what decodes take is not known yet
}

TEST(a_target_bounds_the_whole_step) {
  PrefillPacer pacer(1000, 0.1);
  teach(pacer);
  CHECK(is_between(tokens_for(pacer, 8, 0), 76, 92));    // 8 + 84 + 84 * 85 / 2000
  CHECK(is_between(tokens_for(pacer, 8, 6000), 8, 16));  // late slices cost seven times as much
  CHECK(is_between(tokens_for(pacer, 60, 0), 28, 40));
  CHECK_EQ(tokens_for(pacer, 99, 0), kLeastPromptTokens);  // the decodes alone take all of it
  CHECK_EQ(tokens_for(pacer, 999, 0), 1);                  // no more than there is room for
}

TEST(without_a_target_the_decodes_set_the_pace) {
  PrefillPacer pacer(1000, 0.0);
  teach(pacer);
  CHECK(is_between(tokens_for(pacer, 40, 0), 30, 40));  // 0.9 x 40 ms
  CHECK(is_between(tokens_for(pacer, 20, 0), 14, 20));
  CHECK(is_between(tokens_for(pacer, 4, 0), 2, 5));
  CHECK_EQ(tokens_for(pacer, 2, 6000), kLeastPromptTokens);
}

TEST(where_many_prompts_wait_for_few_decodes_they_get_more) {
  PrefillPacer pacer(1000, 0.0);
  teach(pacer);
  const auto allowance_s = [&](size_t num_prompts) {
    return pacer.allowance_s(10, 1000, std::vector<PromptNeed>(num_prompts, {100, 0}));
  };
  CHECK(std::abs(allowance_s(1) - (kMixedStepRatio - 1.0) * 0.010) < 0.001);
  CHECK(std::abs(allowance_s(4) - allowance_s(1)) < 2e-4);
  CHECK(std::abs(allowance_s(20) - 0.040) < 0.003);
}

TEST(where_steps_vary_the_usual_ones_count) {
  PrefillPacer pacer(1000, 0.0);
  teach(pacer, {.noise = 0.2});
  // Mixed ones vary as much: a slow spell must not stretch them twice.
  const PromptNeed prompt{100, 0};
  CHECK(std::abs(pacer.allowance_s(10, 1000, {&prompt, 1}) - (kMixedStepRatio - 1.0) * 0.010) < 0.002);
}

TEST(a_step_may_take_as_long_as_decodes_will_at_the_end_of_the_prompt) {
  PrefillPacer pacer(1000, 0.0);
  teach(pacer, {.decode_position_s = 2e-6});
  const double ratio = kMixedStepRatio;
  const auto step_s = [&](int32_t num_tokens) {
    const PromptNeed prompt{num_tokens, 0};
    return 0.012 + pacer.allowance_s(10, 1000, {&prompt, 1});
  };
  // A step of the decodes takes 12 ms now and 20 us more with each step.
  CHECK(std::abs(step_s(20) - ratio * 0.012) < 0.001);
  // 3000 tokens cost 7.5 s. That is done after so many steps, if each leaves to the prompt what its own
  // decodes, half as much grown on average, do not take.
  double num_steps = 0;
  for (double left_s = 7.5; left_s > 0; ++num_steps) {
    left_s = 7.5 - (num_steps + 1) * (step_s(3000) - 0.012 - 10e-6 * num_steps);
  }
  CHECK(std::abs(step_s(3000) - ratio * (0.012 + 20e-6 * num_steps)) < 0.0015);
  CHECK(num_steps > 200);
  // A prompt without end does not stretch steps without end.
  CHECK(std::abs(step_s(1'000'000) - ratio * kLargestGrowth * 0.012) < 0.002);
}

TEST(each_prompt_is_priced_where_it_stands) {
  PrefillPacer pacer(1000, 0.0);
  teach(pacer);
  const auto total = [&](int32_t first_done, int32_t second_done) {
    const PromptNeed prompts[] = {{5000, first_done}, {50, second_done}};
    const std::vector<int32_t> shares =
        pacer.share(prompts, 800, pacer.allowance_s(200, 20'000, prompts), kLeastPromptTokens);
    CHECK(shares[0] > 0 && shares[1] > 0);
    return shares[0] + shares[1];
  };
  CHECK(total(0, 0) > total(4000, 0));
  CHECK(total(4000, 0) > total(4000, 4000));
}

TEST(slices_of_the_pacer_keep_their_cap) {
  PrefillPacer pacer(20, 0.0);
  teach(pacer);
  CHECK_EQ(tokens_for(pacer, 60, 0), 20);
  CHECK_EQ(tokens_for(pacer, 0, 0), 20);
}

TEST_MAIN()
