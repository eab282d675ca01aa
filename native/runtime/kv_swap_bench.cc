// What saving and fetching the KV of one sequence costs: the caller's share and the file thread's. Usage:
// kv_swap_bench [folder for the file]. The last line is one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kv/kv_manager.h"
#include "runtime/kv_swap.h"

using namespace plait;

namespace {

constexpr int32_t kNumTokens = 1024;
constexpr int32_t kBlockTokens = 16;
constexpr int32_t kNumRounds = 21;
const KvLayout kLayout{30, 3, 64, kBlockTokens, KvDtype::kF16};  // of a model with 135 M parameters

struct Figures {
  double call_us = 0;  // try_save or try_fetch, for the caller
  double work_ms = 0;  // begin to end on the thread
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

Figures measure(KvSwap& swap, Doorbell& bell, const std::function<bool()>& start,
                const std::function<void()>& after) {
  std::vector<double> calls_us;
  std::vector<double> works_ms;
  for (int32_t i = 0; i < kNumRounds; ++i) {
    const int64_t begin_ns = monotonic_ns();
    if (!start()) std::fprintf(stderr, "refused\n");
    calls_us.push_back(static_cast<double>(monotonic_ns() - begin_ns) / 1e3);
    KvTransfer transfer;
    for (;;) {
      const uint32_t seen = bell.epoch();
      if (swap.try_pop(transfer)) break;
      bell.wait(seen, -1);
    }
    if (!transfer.ok) std::fprintf(stderr, "%s\n", transfer.error.c_str());
    works_ms.push_back(static_cast<double>(transfer.end_ns - transfer.begin_ns) / 1e6);
    after();
  }
  return {median(calls_us), median(works_ms)};
}

void report(const char* name, const Figures& figures, int64_t num_bytes, std::string& json) {
  const double gb_per_s = static_cast<double>(num_bytes) / figures.work_ms / 1e6;
  std::printf("%-12s caller %7.1f us, thread %7.2f ms, %5.1f GB/s\n", name, figures.call_us, figures.work_ms,
              gb_per_s);
  char text[200];
  std::snprintf(text, sizeof(text), "%s\"%s\": {\"call_us\": %.2f, \"work_ms\": %.3f, \"gb_per_s\": %.2f}",
                json.empty() ? "" : ", ", name, figures.call_us, figures.work_ms, gb_per_s);
  json += text;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string dir = argc > 1 ? argv[1] : "/tmp";
  constexpr int32_t kNumBlocks = kNumTokens / kBlockTokens;
  const auto num_bytes = static_cast<int64_t>(kLayout.block_bytes()) * kNumBlocks;
  const auto storage = std::make_shared<KvStorage>(kLayout, kNumBlocks);
  std::memset(storage->pool(), 1, static_cast<size_t>(num_bytes));
  KvManager kv(kNumBlocks, kBlockTokens, "bench");
  kv.open_sequence(1, {}, "", false);
  if (!kv.try_grow(1, kNumTokens)) return 1;
  kv.commit(1, std::vector<int32_t>(kNumTokens, 1));
  const BlockSnapshot snapshot = kv.capture(1);
  std::string json;
  for (const bool is_file : {false, true}) {
    const auto bell = std::make_shared<Doorbell>();
    const KvSwapOptions options{is_file ? 0 : num_bytes, is_file ? dir : std::string(), 0};
    KvSwap swap(storage, kv.versions(), options, bell);
    const Figures save =
        measure(swap, *bell, [&] { return swap.try_save(1, snapshot); }, [&] { swap.drop(1); });
    report(is_file ? "save_file" : "save_ram", save, num_bytes, json);
    if (!swap.try_save(1, snapshot)) return 1;
    KvTransfer transfer;
    while (!swap.try_pop(transfer)) bell->wait(bell->epoch(), 1'000'000);
    const Figures fetch = measure(swap, *bell, [&] { return swap.try_fetch(1, snapshot.blocks); }, [] {});
    report(is_file ? "fetch_file" : "fetch_ram", fetch, num_bytes, json);
  }
  std::vector<double> copies_ms;
  std::vector<std::byte> target(static_cast<size_t>(num_bytes));
  for (int32_t i = 0; i < kNumRounds; ++i) {
    const int64_t begin_ns = monotonic_ns();
    std::memcpy(target.data(), storage->pool(), target.size());
    copies_ms.push_back(static_cast<double>(monotonic_ns() - begin_ns) / 1e6);
  }
  report("memcpy", {0, median(copies_ms)}, num_bytes, json);
  std::printf("{\"num_bytes\": %lld, %s}\n", static_cast<long long>(num_bytes), json.c_str());
  return 0;
}
