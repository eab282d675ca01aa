#include "scheduler/budget.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/test.h"

using namespace plait;

namespace {

std::vector<int32_t> share(const std::vector<int32_t>& remaining, int32_t budget, int32_t max_slice = 512) {
  return share_prefill(remaining, budget, max_slice);
}

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

TEST(the_pacer_learns_and_forgets_slowly) {
  PrefillPacer pacer(1000, 0.1);
  CHECK_EQ(pacer.budget(8), 992);  // nothing is known yet
  pacer.observe(400, 0, 0.4);
  CHECK(std::abs(pacer.token_s() - 0.001) < 1e-9);
  CHECK_EQ(pacer.budget(0), 1000);  // nobody to hold up
  CHECK_EQ(pacer.budget(8), 92);
  CHECK_EQ(pacer.budget(60), kMinSliceTokens);
  pacer.observe(8, 8, 5.0);
  CHECK(std::abs(pacer.token_s() - 0.001) < 1e-9);  // decode steps teach nothing
  pacer.observe(400, 0, 0.8);
  CHECK(pacer.token_s() > 0.001 && pacer.token_s() < 0.002);
}

TEST_MAIN()
