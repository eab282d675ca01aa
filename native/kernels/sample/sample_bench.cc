// Time of one sample_row over large vocabularies: ./sample_bench [vocabulary]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/sample/sample.h"

namespace {

void time_case(const char* name, const std::vector<float>& logits, const plait::SampleParams& params) {
  plait::TokenHistory history;
  plait::SampleScratch scratch;
  plait::Sampled out;
  double best = 1e9;
  int64_t check = 0;
  for (uint64_t i = 0; i < 30; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    plait::sample_row(logits, params, history, i, scratch, out);
    const auto end = std::chrono::steady_clock::now();
    best = std::min(best, std::chrono::duration<double, std::micro>(end - begin).count());
    check += out.token;
  }
  std::printf("%-28s %8.1f us  (check %lld)\n", name, best, static_cast<long long>(check));
}

}  // namespace

int main(int argc, char** argv) {
  const size_t vocab = argc > 1 ? static_cast<size_t>(std::atoll(argv[1])) : 262144;
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = normal(rng);
  time_case("greedy", logits, {.temperature = 0.0F});
  time_case("greedy, penalties", logits, {.temperature = 0.0F, .presence_penalty = 1.0F});
  time_case("greedy, 5 logprobs", logits, {.temperature = 0.0F, .num_logprobs = 5});
  time_case("temperature", logits, {});
  time_case("top_k 40", logits, {.top_k = 40});
  time_case("top_k 40, top_p 0.9", logits, {.top_p = 0.9F, .top_k = 40});
  time_case("top_p 0.9", logits, {.top_p = 0.9F});
  std::vector<float> peaked = logits;
  for (size_t i = 0; i < 50; ++i) peaked[i * vocab / 50] += 15.0F;
  time_case("top_p 0.9, peaked", peaked, {.top_p = 0.9F});
  time_case("min_p 0.05", logits, {.min_p = 0.05F});
  time_case("top_p 0.9, all equal", std::vector<float>(vocab, 1.0F), {.top_p = 0.9F});
  return 0;
}
