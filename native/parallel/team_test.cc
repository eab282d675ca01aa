#include "parallel/team.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/test.h"

using plait::Team;

namespace {

void check_every_chunk_once(int32_t num_threads, int32_t num_jobs) {
  Team team(num_threads, {});
  CHECK_EQ(team.num_threads(), num_threads);
  std::vector<int32_t> counts;
  for (int32_t job = 0; job < num_jobs; ++job) {
    const int32_t num_chunks = job % 37;
    counts.assign(static_cast<size_t>(num_chunks), 0);
    std::atomic<bool> is_member_valid{true};
    // Plain increments: two members on one chunk would be a race that ThreadSanitizer reports.
    team.run(num_chunks, [&](int32_t chunk, int32_t member) {
      ++counts[static_cast<size_t>(chunk)];
      if (member < 0 || member >= num_threads) is_member_valid = false;
    });
    CHECK(is_member_valid);
    for (int32_t count : counts) CHECK_EQ(count, 1);
  }
}

}  // namespace

TEST(one_thread) { check_every_chunk_once(1, 200); }
TEST(two_threads) { check_every_chunk_once(2, 20'000); }
TEST(more_threads_than_cores) { check_every_chunk_once(5, 4'000); }

TEST(results_are_visible_after_run) {
  Team team(3, {});
  int64_t total = 0;
  for (int32_t job = 0; job < 5'000; ++job) {
    std::vector<int64_t> parts(16, 0);
    team.run(16, [&](int32_t chunk, int32_t) { parts[static_cast<size_t>(chunk)] = job + chunk; });
    for (int64_t part : parts) total += part;
  }
  CHECK_EQ(total, int64_t{16} * 4'999 * 5'000 / 2 + int64_t{5'000} * 120);
}

TEST(wakes_after_sleep) {
  Team team(2, {});
  for (int32_t round = 0; round < 3; ++round) {
    std::atomic<int32_t> sum{0};
    team.run(100, [&](int32_t chunk, int32_t) { sum += chunk; });
    CHECK_EQ(sum.load(), 4950);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST_MAIN()
