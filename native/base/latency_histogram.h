// How long something took, by size: four buckets to each doubling, from 1 us to beyond a minute.
// One thread writes, any thread reads; all accesses are relaxed, each number is right by itself.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace plait {

class LatencyHistogram {
 public:
  static constexpr size_t kNumBuckets = 108;

  void note(int64_t ns) {
    add(counts_[bucket_of(ns)], 1);
    add(total_ns_, std::max<int64_t>(ns, 0));
    if (ns > max_ns_.load(std::memory_order_relaxed)) max_ns_.store(ns, std::memory_order_relaxed);
  }

  int64_t total_ns() const { return total_ns_.load(std::memory_order_relaxed); }
  int64_t max_ns() const { return max_ns_.load(std::memory_order_relaxed); }
  int64_t count() const {
    int64_t sum = 0;
    for (const auto& bucket : counts_) sum += bucket.load(std::memory_order_relaxed);
    return sum;
  }
  // Those of whole buckets that end at or below `ns`: at most a fifth of the way to `ns` is not looked at.
  int64_t count_within(int64_t ns) const {
    int64_t sum = 0;
    for (size_t i = 0; i < kNumBuckets && upper_ns(i) <= ns; ++i)
      sum += counts_[i].load(std::memory_order_relaxed);
    return sum;
  }
  // The upper end of the bucket in which the quantile `q` (0 to 1) falls; 0 when nothing was noted.
  int64_t quantile_ns(double q) const {
    const int64_t all = count();
    if (all == 0) return 0;
    const auto rank = static_cast<int64_t>(std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(all)));
    int64_t sum = 0;
    for (size_t i = 0; i < kNumBuckets; ++i) {
      sum += counts_[i].load(std::memory_order_relaxed);
      if (sum >= std::max<int64_t>(rank, 1)) return std::min(upper_ns(i), max_ns());
    }
    return max_ns();
  }

  // Bucket i holds what is above upper_ns(i - 1) and at most this. The last one has no end.
  static int64_t upper_ns(size_t i) {
    if (i + 1 >= kNumBuckets) return INT64_MAX;
    return static_cast<int64_t>(1000.0 * std::exp2(static_cast<double>(i) / 4.0));
  }

 private:
  static size_t bucket_of(int64_t ns) {
    if (ns <= 1000) return 0;
    const double octaves = std::log2(static_cast<double>(ns) / 1000.0);
    auto i = static_cast<size_t>(std::clamp(octaves * 4.0, 0.0, static_cast<double>(kNumBuckets - 1)));
    while (i > 0 && ns <= upper_ns(i - 1)) --i;
    while (ns > upper_ns(i)) ++i;
    return i;
  }
  static void add(std::atomic<int64_t>& number, int64_t amount) {
    number.store(number.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }

  std::array<std::atomic<int64_t>, kNumBuckets> counts_{};
  std::atomic<int64_t> total_ns_{0};
  std::atomic<int64_t> max_ns_{0};
};

}  // namespace plait
