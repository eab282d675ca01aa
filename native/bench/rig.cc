#include "bench/rig.h"

#include <sched.h>

#include <cstring>

#include "base/error.h"
#include "base/memory.h"

namespace plait {

PinnedHere::PinnedHere(int32_t cpu) {
  cpu_set_t before;
  if (cpu < 0 || sched_getaffinity(0, sizeof before, &before) != 0) return;
  before_.resize(sizeof before);
  std::memcpy(before_.data(), &before, sizeof before);
  pin_this_thread(cpu);
}

PinnedHere::~PinnedHere() {
  if (before_.empty()) return;
  cpu_set_t before;
  std::memcpy(&before, before_.data(), sizeof before);
  sched_setaffinity(0, sizeof before, &before);
}

Rig::Rig(const KernelTable& kernels, int32_t num_threads, std::vector<int32_t> cpus)
    : kernels_(kernels), cpus_(std::move(cpus)), team_(num_threads, cpus_) {}

template <typename Fn>
void Rig::run_chunks(bool is_alone, int32_t num_chunks, Fn&& fn) {
  if (!is_alone) return team_.run(num_chunks, fn);
  for (int32_t chunk = 0; chunk < num_chunks; ++chunk) fn(chunk, 0);
}

namespace {

constexpr size_t kReadChunkBytes = size_t{1} << 20;
constexpr size_t kWordsPerLine = 8;

// How a chunk is read: how far ahead of a read its line is asked for (0: the CPU is left to guess), and in
// how many streams. Which is fastest depends on the CPU, so each is tried in every run.
struct ReadWay {
  size_t ahead;
  size_t num_streams;
};
constexpr ReadWay kReadWays[] = {{0, 1}, {1024, 1}, {4096, 1}, {0, 2}, {0, 4}};

template <size_t kStreams>
__attribute__((always_inline)) inline uint64_t sum_lines(const uint64_t* p, size_t num_words, size_t ahead) {
  uint64_t sums[kWordsPerLine] = {};
  const size_t words_apart = num_words / kStreams;
  for (size_t i = 0; i < words_apart; i += kWordsPerLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* line = p + s * words_apart + i;
      if (ahead != 0) __builtin_prefetch(reinterpret_cast<const std::byte*>(line) + ahead);
      for (size_t k = 0; k < kWordsPerLine; ++k) sums[k] += line[k];
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

__attribute__((always_inline)) inline uint64_t sum_words_as(const uint64_t* p, size_t num_words,
                                                            ReadWay way) {
  if (way.num_streams == 4) return sum_lines<4>(p, num_words, way.ahead);
  if (way.num_streams == 2) return sum_lines<2>(p, num_words, way.ahead);
  return sum_lines<1>(p, num_words, way.ahead);
}

uint64_t sum_words_scalar(const uint64_t* p, size_t num_words, ReadWay way) {
  return sum_words_as(p, num_words, way);
}

using SumFn = uint64_t (*)(const uint64_t* p, size_t num_words, ReadWay way);

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t sum_words_avx2(const uint64_t* p, size_t num_words, ReadWay way) {
  return sum_words_as(p, num_words, way);
}
SumFn sum_words(Isa isa) { return isa == Isa::kScalar ? sum_words_scalar : sum_words_avx2; }
#else
SumFn sum_words(Isa) { return sum_words_scalar; }
#endif

}  // namespace

std::vector<double> Rig::read_rates(size_t num_bytes, bool is_alone, int32_t repeats) {
  const auto num_chunks = static_cast<int32_t>(std::max<size_t>(1, num_bytes / kReadChunkBytes));
  const Memory memory(static_cast<size_t>(num_chunks) * kReadChunkBytes);
  constexpr size_t kWords = kReadChunkBytes / sizeof(uint64_t);
  const auto chunk_at = [&](int32_t chunk) {
    return reinterpret_cast<uint64_t*>(memory.data()) + static_cast<size_t>(chunk) * kWords;
  };
  const PinnedHere pinned(first_cpu());
  run_chunks(false, num_chunks, [&](int32_t chunk, int32_t) {
    std::fill_n(chunk_at(chunk), kWords, uint64_t{1} + static_cast<uint64_t>(chunk));
  });
  const auto chunks = static_cast<uint64_t>(num_chunks);
  const uint64_t expected = kWords * (chunks * (chunks + 1) / 2);
  const SumFn sum = sum_words(kernels_.isa);
  std::vector<uint64_t> sums(static_cast<size_t>(num_chunks));
  const auto time = [&](ReadWay way) {
    const int64_t begin = monotonic_ns();
    run_chunks(is_alone, num_chunks, [&](int32_t chunk, int32_t) {
      sums[static_cast<size_t>(chunk)] = sum(chunk_at(chunk), kWords, way);
    });
    const double seconds = static_cast<double>(monotonic_ns() - begin) * 1e-9;
    uint64_t total = 0;
    for (const uint64_t part : sums) total += part;
    if (total != expected) throw Error(ErrorCode::kInternal, "the memory that was read does not add up");
    return static_cast<double>(memory.size()) / seconds;
  };
  std::vector<double> rates;
  for (int32_t i = 0; i < repeats; ++i) {
    for (const ReadWay way : kReadWays) rates.push_back(time(way));
  }
  return rates;
}

std::vector<double> Rig::mac_rates(MacUnit unit, bool is_alone, int32_t repeats) {
  const MacLoopFn loop = mac_loop(kernels_.isa, unit);
  const PinnedHere pinned(first_cpu());
  constexpr int32_t kChunksPerThread = 4;
  const int32_t num_chunks = kChunksPerThread * (is_alone ? 1 : num_threads());
  std::vector<uint64_t> macs(static_cast<size_t>(num_chunks));
  const auto time = [&](int64_t rounds) {
    const int64_t begin = monotonic_ns();
    run_chunks(is_alone, num_chunks,
               [&](int32_t chunk, int32_t) { macs[static_cast<size_t>(chunk)] = loop(rounds); });
    return static_cast<double>(monotonic_ns() - begin) * 1e-9;
  };
  // A chunk of about half a millisecond: short enough that some run is not disturbed.
  constexpr double kRunSeconds = 0.5e-3 * kChunksPerThread;
  int64_t rounds = 256;
  while (rounds < kMaxMacRounds && time(rounds) < kRunSeconds / 2) rounds *= 2;
  std::vector<double> rates;
  for (int32_t i = 0; i < repeats; ++i) {
    const double seconds = time(rounds);
    uint64_t total = 0;
    for (const uint64_t part : macs) total += part;
    rates.push_back(static_cast<double>(total) / seconds);
  }
  return rates;
}

}  // namespace plait
