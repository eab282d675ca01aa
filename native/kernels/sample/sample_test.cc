// Sampling against a naive implementation in double precision, its distribution, extremes and Philox.
#include "kernels/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <random>

#include "base/test.h"
#include "kernels/sample/philox.h"
#include "kernels/sample/row_passes.h"

static int64_t num_allocations = 0;

// Not inlined: the compiler would see free() meet operator new and warn of a mismatch.
[[gnu::noinline]] void* operator new(size_t num_bytes) {
  ++num_allocations;
  void* const p = std::malloc(num_bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
// std::stable_sort allocates with this form and frees with the plain operator delete.
[[gnu::noinline]] void* operator new(size_t num_bytes, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(num_bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace plait {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::mt19937& rng, size_t num, float scale) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> logits(num);
  for (float& x : logits) x = normal(rng);
  return logits;
}

Sampled sample(const std::vector<float>& logits, const SampleParams& params, uint64_t counter = 0,
               const TokenHistory& history = {}) {
  SampleScratch scratch;
  Sampled out;
  sample_row(logits, params, history, counter, scratch, out);
  return out;
}

std::vector<int32_t> ranked(const std::vector<float>& x) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return x[size_t(a)] > x[size_t(b)]; });
  return order;
}

// The definition, word for word: sorts everything.
int32_t naive_sample(std::vector<float> x, const SampleParams& p, const TokenHistory& history,
                     uint64_t counter) {
  for (const auto& [id, bias] : p.logit_bias) x[size_t(id)] += bias;
  for (int32_t id = 0; id < int32_t(x.size()); ++id) {
    int32_t count = 0;
    for (const auto& [seen, times] : history.output_counts) count += seen == id ? times : 0;
    const bool in_prompt =
        std::find(history.prompt_ids.begin(), history.prompt_ids.end(), id) != history.prompt_ids.end();
    float& logit = x[size_t(id)];
    if (count > 0 || in_prompt)
      logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (count > 0) logit -= float(count) * p.frequency_penalty + p.presence_penalty;
  }
  if (history.num_output < p.min_tokens) {
    for (const int32_t id : p.stop_token_ids) x[size_t(id)] = -kInf;
  }
  std::vector<int32_t> order = ranked(x);
  if (p.temperature == 0) return order[0];
  if (p.top_k > 0 && size_t(p.top_k) < order.size()) order.resize(size_t(p.top_k));
  std::vector<double> weights(x.size());
  double sum = 0;
  for (const int32_t id : order) {
    sum += weights[size_t(id)] = std::exp((double(x[size_t(id)]) - x[size_t(order[0])]) / p.temperature);
  }
  double mass = 0;
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || p.top_p >= 1 || mass < p.top_p * sum)) {
    mass += weights[size_t(order[kept++])];
  }
  order.resize(kept);
  std::erase_if(order, [&](int32_t id) { return weights[size_t(id)] < p.min_p; });
  std::sort(order.begin(), order.end());
  sum = 0;
  for (const int32_t id : order) sum += weights[size_t(id)];
  uint32_t words[4];
  philox4x32(p.seed, counter, words);
  const double u = (double(words[0] >> 5) * 0x1p26 + double(words[1] >> 6)) * 0x1p-53;
  double running = 0;
  for (const int32_t id : order) {
    running += weights[size_t(id)];
    if (running > u * sum) return id;
  }
  return order.back();
}

TEST(philox_known_answers) {
  using Words = std::array<uint32_t, 4>;
  const uint32_t ones = 0xFFFFFFFFU;
  CHECK((philox4x32_10({0, 0, 0, 0}, {0, 0}) == Words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  CHECK((philox4x32_10({ones, ones, ones, ones}, {ones, ones}) ==
         Words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  CHECK((philox4x32_10({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}) ==
         Words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
  uint32_t words[4];
  philox4x32(0x0123456789ABCDEFULL, 0xFEDCBA9876543210ULL, words);
  CHECK((philox4x32_10({0x76543210, 0xFEDCBA98, 0, 0}, {0x89ABCDEF, 0x01234567}) ==
         Words{words[0], words[1], words[2], words[3]}));
}

TEST(greedy_takes_the_best_lowest_id) {
  std::mt19937 rng(1);
  for (const size_t num : {1, 2, 15, 16, 17, 1023, 1024, 1025, 5000}) {
    for (int i = 0; i < 20; ++i) {
      std::vector<float> logits = random_logits(rng, num, 1.0F);
      if (i % 2 == 0) {
        for (float& x : logits) x = std::round(x);
      }
      CHECK_EQ(sample(logits, {.temperature = 0.0F}).token, ranked(logits)[0]);
    }
  }
}

TEST(every_filter_matches_the_naive_one) {
  std::mt19937 rng(2);
  const auto pick = [&rng](int32_t lo, int32_t hi) {
    return std::uniform_int_distribution<int32_t>(lo, hi)(rng);
  };
  for (int i = 0; i < 4000; ++i) {
    const size_t num = size_t(i % 10 == 0 ? pick(5000, 20000) : pick(1, 600));
    std::vector<float> logits = random_logits(rng, num, 0.5F * float(pick(1, 8)));
    if (i % 3 == 0) {
      for (float& x : logits) x = std::round(x * 2) / 2;  // many ties
    }
    SampleParams p;
    p.temperature = i % 7 == 0 ? 0.0F : 0.25F * float(pick(1, 8));
    p.top_p = pick(0, 1) == 0 ? 1.0F : 0.01F * float(pick(1, 99));
    p.top_k = pick(0, 1) == 0 ? 0 : pick(1, int32_t(num) + 3);
    if (pick(0, 2) == 0) p.top_k = pick(1, 5);
    p.min_p = pick(0, 2) == 0 ? 0.013F * float(pick(1, 60)) : 0.0F;
    p.seed = rng();
    TokenHistory history;
    if (i % 2 == 0) {
      p.repetition_penalty = 0.5F + 0.25F * float(pick(0, 5));
      p.presence_penalty = 0.5F * float(pick(-3, 3));
      p.frequency_penalty = 0.5F * float(pick(-3, 3));
      std::vector<int32_t> prompt, output;
      for (int k = pick(0, 30); k > 0; --k) prompt.push_back(pick(0, int32_t(num) - 1));
      for (int k = pick(0, 30); k > 0; --k) output.push_back(pick(0, int32_t(num) - 1));
      history.start(prompt, output);
      for (int k = pick(0, 5); k > 0; --k)
        p.logit_bias.emplace_back(pick(0, int32_t(num) - 1), float(pick(-5, 5)));
      p.min_tokens = pick(0, 20);
      if (num > 10) p.stop_token_ids = {pick(0, 4), pick(5, 9)};
    }
    CHECK_EQ(sample(logits, p, uint64_t(i), history).token, naive_sample(logits, p, history, uint64_t(i)));
  }
}

// The bins of top_p down to the sorted rest: a large row, all within one bin of distance or all equal.
TEST(top_p_in_flat_rows) {
  std::mt19937 rng(3);
  std::vector<float> logits(60000);
  std::uniform_real_distribution<float> narrow(-9.01F, -9.0F);
  for (const int kind : {0, 1, 2}) {
    for (float& x : logits) x = kind == 0 ? narrow(rng) : 1.0F;
    if (kind == 2) logits[777] = 10.0F;
    if (kind == 0) logits[5] = 0.0F;
    for (uint64_t i = 0; i < 12; ++i) {
      SampleParams p;
      p.top_p = 0.08F * float(i + 1);
      p.seed = i;
      CHECK_EQ(sample(logits, p, i).token, naive_sample(logits, p, {}, i));
    }
  }
}

TEST(draws_follow_the_distribution) {
  const std::vector<float> logits{0.0F, 1.0F, -1.0F, 2.0F, 0.5F, -kInf, 1.5F, -3.0F};
  constexpr int kDraws = 40000;
  for (const float temperature : {0.7F, 1.0F, 2.0F}) {
    std::vector<double> expected;
    double sum = 0;
    for (const float x : logits) sum += expected.emplace_back(std::exp(double(x) / temperature));
    std::map<int32_t, int> seen;
    for (int i = 0; i < kDraws; ++i) {
      ++seen[sample(logits, {.temperature = temperature, .seed = 42}, uint64_t(i)).token];
    }
    CHECK_EQ(seen.count(5), size_t{0});
    double chi_square = 0;
    for (size_t id = 0; id < logits.size(); ++id) {
      const double want = kDraws * expected[id] / sum;
      if (want > 0) chi_square += (seen[int32_t(id)] - want) * (seen[int32_t(id)] - want) / want;
    }
    CHECK(chi_square < 24.3);  // 6 degrees of freedom: 0.05 % lie beyond
  }
}

// Seeds that differ, and counters that follow each other, give independent draws.
TEST(draws_are_independent) {
  const std::vector<float> logits(16, 0.0F);
  std::vector<int> pairs(256);
  constexpr int kDraws = 25600;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const int32_t a = sample(logits, {.seed = i}, i % 7).token;
    const int32_t b = sample(logits, {.seed = i}, i % 7 + 1).token;
    ++pairs[size_t(a * 16 + b)];
  }
  double chi_square = 0;
  for (const int count : pairs) chi_square += (count - 100.0) * (count - 100.0) / 100.0;
  CHECK(chi_square > 180 && chi_square < 340);  // 255 degrees of freedom, deviation 22.6
}

TEST(logprobs_do_not_change_the_draw) {
  std::mt19937 rng(4);
  SampleScratch scratch;
  Sampled plain, scored;
  for (uint64_t i = 0; i < 300; ++i) {
    const std::vector<float> logits = random_logits(rng, 700, 3.0F);
    SampleParams p;
    p.temperature = i % 3 == 0 ? 0.0F : 1.3F;
    p.top_k = i % 2 == 0 ? 50 : 0;
    p.top_p = i % 5 == 0 ? 0.9F : 1.0F;
    p.repetition_penalty = 1.2F;
    TokenHistory history;
    history.start(std::vector<int32_t>{1, 2, 3}, std::vector<int32_t>{4, 4});
    sample_row(logits, p, history, i, scratch, plain);
    p.num_logprobs = int32_t(i % 6);
    sample_row(logits, p, history, i, scratch, scored);
    CHECK_EQ(plain.token, scored.token);
    CHECK_EQ(plain.rank, 0);
    CHECK(plain.top.empty());
    CHECK_EQ(scored.top.size(), size_t(i % 6));
  }
}

TEST(no_allocation_once_warm) {
  std::mt19937 rng(6);
  const std::vector<float> logits = random_logits(rng, 30000, 1.0F);
  SampleScratch scratch;
  Sampled out;
  std::vector<SampleParams> all{{.temperature = 0.0F},
                                {.presence_penalty = 1.0F, .num_logprobs = 20},
                                {.top_k = 40},
                                {.top_p = 0.9F, .min_p = 0.001F},
                                {.top_p = 0.05F}};
  for (int round = 0; round < 3; ++round) {
    const int64_t before = num_allocations;
    for (uint64_t i = 0; i < 10; ++i) {
      for (const SampleParams& p : all) sample_row(logits, p, {}, i, scratch, out);
    }
    if (round > 0) CHECK_EQ(num_allocations, before);
  }
}

TEST(logprobs_match_double) {
  std::mt19937 rng(5);
  SampleScratch scratch;
  Sampled out;
  for (const size_t num : {1, 3, 64, 1000, 30000}) {
    for (int i = 0; i < 10; ++i) {
      std::vector<float> logits = random_logits(rng, num, 4.0F);
      if (i % 2 == 0) {
        for (float& x : logits) x = std::round(x);
      }
      const int32_t token = std::uniform_int_distribution<int32_t>(0, int32_t(num) - 1)(rng);
      const int32_t num_top = i == 9 ? int32_t(num) + 5 : i;
      score_row(logits, token, num_top, scratch, out);
      const std::vector<int32_t> order = ranked(logits);
      double sum = 0;
      for (const float x : logits) sum += std::exp(double(x) - double(logits[size_t(order[0])]));
      const auto logprob = [&](int32_t id) {
        return double(logits[size_t(id)]) - double(logits[size_t(order[0])]) - std::log(sum);
      };
      CHECK_EQ(out.token, token);
      CHECK(std::fabs(out.logprob - logprob(token)) < 2e-6);
      CHECK_EQ(order[size_t(out.rank - 1)], token);
      CHECK_EQ(out.top.size(), std::min(size_t(num_top), num));
      for (size_t k = 0; k < out.top.size(); ++k) {
        CHECK_EQ(out.top[k].first, order[k]);
        CHECK(std::fabs(out.top[k].second - logprob(order[k])) < 2e-6);
      }
    }
  }
}

TEST(logprobs_are_of_the_raw_logits) {
  const std::vector<float> logits{1.0F, 2.0F, 3.0F};
  SampleParams p{.temperature = 0.0F, .num_logprobs = 2, .logit_bias = {{0, 100.0F}}};
  const Sampled out = sample(logits, p);
  CHECK_EQ(out.token, 0);
  CHECK_EQ(out.rank, 3);
  CHECK(std::fabs(out.logprob + 2.4076059) < 1e-6);
  CHECK_EQ(out.top[0].first, 2);
}

TEST(extremes_neither_crash_nor_hang) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = std::numeric_limits<float>::max();
  std::vector<SampleParams> all;
  for (const float temperature : {0.0F, 1e-30F, 1e-6F, 1.0F, 1e30F}) {
    for (const int32_t top_k : {0, 1, 3, 100}) {
      for (const float top_p : {1.0F, 0.5F, 1e-20F}) {
        for (const float min_p : {0.0F, 0.3F, 1.0F}) {
          all.push_back({.temperature = temperature,
                         .top_p = top_p,
                         .top_k = top_k,
                         .min_p = min_p,
                         .num_logprobs = 4});
        }
      }
    }
  }
  const std::vector<float> nothing(40, -kInf);
  const std::vector<float> nans(40, nan);
  std::vector<float> one(40, nan);
  one[7] = -1000.0F;
  std::vector<float> infinite(40, 3.0F);
  infinite[11] = infinite[30] = kInf;
  std::vector<float> wide(40, -largest);
  wide[3] = largest;
  for (const SampleParams& p : all) {
    for (uint64_t i = 0; i < 4; ++i) {
      CHECK_EQ(sample(nothing, p, i).token, 0);
      CHECK_EQ(sample(nans, p, i).token, 0);
      const Sampled only = sample(one, p, i);
      CHECK_EQ(only.token, 7);
      CHECK_EQ(only.logprob, 0.0F);
      CHECK_EQ(only.top[1].second, -kInf);
      const int32_t best = sample(infinite, p, i).token;
      CHECK(best == 11 || (best == 30 && p.temperature > 0));
      if (p.temperature < 1e29F) CHECK_EQ(sample(wide, p, i).token, 3);
      CHECK_EQ(sample({1.0F}, p, i).token, 0);
    }
  }
  // Ids that are not in the row are passed over.
  SampleParams odd{.temperature = 0.0F, .repetition_penalty = 2.0F, .min_tokens = 9};
  odd.logit_bias = {{-1, 5.0F}, {40, 5.0F}, {3, 1.0F}};
  odd.stop_token_ids = {-5, 400};
  TokenHistory history;
  history.start(std::vector<int32_t>{-3, 99}, std::vector<int32_t>{1 << 30});
  CHECK_EQ(sample(std::vector<float>(40, 0.5F), odd, 0, history).token, 3);
}

TEST(ranks_with_nan_and_infinity) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> logits{nan, kInf, 1.0F, largest, -kInf, nan, 1.0F, kInf};
  const std::vector<int32_t> order{1, 3, 7, 2, 6, 0, 4, 5};
  SampleScratch scratch;
  Sampled out;
  for (size_t i = 0; i < order.size(); ++i) {
    score_row(logits, order[i], 8, scratch, out);
    CHECK_EQ(out.rank, int32_t(i) + 1);
    for (size_t k = 0; k < order.size(); ++k) CHECK_EQ(out.top[k].first, order[k]);
  }
}

TEST(history_counts) {
  TokenHistory history;
  history.start(std::vector<int32_t>{5, 3, 5, 9}, std::vector<int32_t>{7, 3});
  history.append(7);
  history.append(1);
  CHECK((history.prompt_ids == std::vector<int32_t>{3, 5, 9}));
  CHECK((history.output_counts == std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {3, 1}, {7, 2}}));
  CHECK_EQ(history.num_output, 4);
  history.start({}, {});
  CHECK(history.prompt_ids.empty() && history.output_counts.empty() && history.num_output == 0);
}

TEST(min_tokens_holds_stop_ids_back) {
  const std::vector<float> logits{0.0F, 5.0F, 1.0F};
  const SampleParams p{.temperature = 0.0F, .min_tokens = 2, .stop_token_ids = {1}};
  TokenHistory history;
  CHECK_EQ(sample(logits, p, 0, history).token, 2);
  history.append(2);
  CHECK_EQ(sample(logits, p, 1, history).token, 2);
  history.append(2);
  CHECK_EQ(sample(logits, p, 2, history).token, 1);
}

TEST(log_of_is_accurate) {
  for (double x = 1.0; x < 1e12; x *= 1.00137)
    CHECK(std::fabs(log_of(x) - std::log(x)) <= 1e-13 * std::max(1.0, std::log(x)));
  CHECK_EQ(log_of(1.0), 0.0);
}

TEST(exp_weights_are_accurate) {
  std::vector<float> x, y;
  for (float v = -87.3F; v <= 0.0F; v += 0.00137F) x.push_back(v);
  y.resize(x.size());
  exp_weights(x.data(), x.size(), 0.0F, 1.0F, y.data());
  for (size_t i = 0; i < x.size(); ++i) CHECK(std::fabs(y[i] / std::exp(double(x[i])) - 1) < 2.4e-7);
}

}  // namespace
}  // namespace plait

TEST_MAIN()
