// What the KV manager costs the scheduler: opening a long prompt, and one decode step of a sequence. The last
// line is one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kv/kv_manager.h"

namespace {

constexpr int32_t kPromptTokens = 6000;

double median_us(int num_rounds, const std::function<void(int)>& run) {
  std::vector<double> times_us;
  for (int i = 0; i < num_rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run(i);
    times_us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times_us.begin(), times_us.begin() + num_rounds / 2, times_us.end());
  return times_us[num_rounds / 2];
}

}  // namespace

int main() {
  plait::KvManager kv(40'000, 16, "model");
  std::vector<int32_t> prompt(kPromptTokens);
  for (int32_t i = 0; i < kPromptTokens; ++i) prompt[i] = i * 31 % 50'000;

  const double grow_us = median_us(50, [&](int i) {
    kv.open_sequence(i, prompt, std::to_string(i), true);
    kv.try_grow(i, kPromptTokens);
  });
  const double commit_us = median_us(50, [&](int i) { kv.commit(i, prompt); });
  for (int i = 0; i < 50; ++i) kv.close_sequence(i);
  const double hit_us = median_us(50, [&](int i) { kv.open_sequence(i, prompt, "7", true); });
  const double close_us = median_us(50, [&](int i) { kv.close_sequence(i); });

  kv.open_sequence(0, {}, "", true);
  const std::vector<int32_t> token = {5};
  const double decode_us = median_us(20'000, [&](int i) {
    kv.try_grow(0, i + 1);
    kv.commit(0, token);
  });
  std::printf("%d tokens: open and grow, cold %.1f us; commit %.1f us; open, cached %.1f us; close %.1f us\n",
              kPromptTokens, grow_us, commit_us, hit_us, close_us);
  std::printf(
      "{\"open_grow_us\": %.2f, \"commit_us\": %.2f, \"open_cached_us\": %.2f, \"close_us\": %.2f, "
      "\"decode_token_us\": %.3f}\n",
      grow_us, commit_us, hit_us, close_us, decode_us);
  return 0;
}
