#include "base/latency_histogram.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/test.h"

namespace plait {
namespace {

TEST(nothing_noted) {
  const LatencyHistogram histogram;
  CHECK_EQ(histogram.count(), 0);
  CHECK_EQ(histogram.quantile_ns(0.99), 0);
  CHECK_EQ(histogram.max_ns(), 0);
}

TEST(ends_of_buckets_belong_to_them) {
  for (size_t i = 0; i + 1 < LatencyHistogram::kNumBuckets; ++i) {
    LatencyHistogram histogram;
    const int64_t end = LatencyHistogram::upper_ns(i);
    histogram.note(end);
    CHECK_EQ(histogram.count_within(end), 1);
    histogram.note(end + 1);
    CHECK_EQ(histogram.count_within(end), 1);
    CHECK_EQ(histogram.count(), 2);
    if (i > 0) CHECK(LatencyHistogram::upper_ns(i - 1) < end);
  }
}

TEST(extremes_are_counted) {
  LatencyHistogram histogram;
  for (const int64_t ns : {INT64_MIN, int64_t{-5}, int64_t{0}, INT64_MAX}) histogram.note(ns);
  CHECK_EQ(histogram.count(), 4);
  CHECK_EQ(histogram.quantile_ns(0.75), 1000);
  CHECK_EQ(histogram.quantile_ns(1.0), INT64_MAX);
}

TEST(quantiles_are_within_a_bucket) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> latency(13.0, 1.5);
  LatencyHistogram histogram;
  std::vector<int64_t> all;
  for (int i = 0; i < 20'000; ++i) {
    all.push_back(static_cast<int64_t>(latency(random)));
    histogram.note(all.back());
  }
  std::sort(all.begin(), all.end());
  for (const double q : {0.01, 0.5, 0.9, 0.99}) {
    const auto exact = static_cast<double>(all[static_cast<size_t>(q * 20'000.0) - 1]);
    const auto got = static_cast<double>(histogram.quantile_ns(q));
    CHECK(got >= exact && got <= exact * 1.2);
  }
}

}  // namespace
}  // namespace plait

TEST_MAIN()
