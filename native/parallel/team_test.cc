#include "parallel/team.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/test.h"
#include "trace/trace.h"

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

TEST(what_lies_ahead_is_fetched_once) {
  Team team(1, {});
  plait::Crew& crew = team.crew();
  const std::vector<std::byte> bytes(size_t{1} << 16);
  const auto num_fetches = [&] {
    int32_t num = 0;
    while (crew.fetch_ahead(0)) ++num;
    return num;
  };
  CHECK_EQ(num_fetches(), 0);
  crew.set_ahead(0, bytes.data(), 4096);
  const int32_t num_of_4096 = num_fetches();
  CHECK(num_of_4096 > 1);
  CHECK_EQ(num_fetches(), 0);
  crew.set_ahead(0, bytes.data(), 4096);  // said again, as before each operation
  CHECK_EQ(num_fetches(), 0);
  crew.set_ahead(0, bytes.data() + 4096, 8192);
  CHECK_EQ(num_fetches(), 2 * num_of_4096);
  crew.set_ahead(0, nullptr, 0);
  CHECK_EQ(num_fetches(), 0);
}

TEST(each_member_fetches_for_its_own_crew) {
  plait::JobBell bell;
  plait::Crew crew(2, bell);
  crew.assign(3, 2, 1);
  const std::vector<std::byte> bytes(8192);
  crew.set_ahead(3, bytes.data(), 4096);
  crew.set_ahead(4, bytes.data() + 4096, 4096);
  CHECK(!crew.fetch_ahead(0));  // a helper
  CHECK(!crew.fetch_ahead(5));
  CHECK(crew.fetch_ahead(3));
  CHECK(crew.fetch_ahead(4));
}

// Also under ThreadSanitizer: members fetch while the owner says what comes next.
TEST(fetching_ahead_disturbs_no_job) {
  Team team(3, {});
  const std::vector<std::byte> bytes(size_t{1} << 20);
  std::vector<int32_t> counts(16);
  for (int32_t job = 0; job < 3'000; ++job) {
    for (int32_t member = 0; member < 3; ++member) {
      team.crew().set_ahead(member, bytes.data() + (job % 8) * (64 << 10) + member * (16 << 10), 16 << 10);
    }
    team.run(16, [&](int32_t chunk, int32_t) { ++counts[static_cast<size_t>(chunk)]; });
  }
  for (const int32_t count : counts) CHECK_EQ(count, 3'000);
}

// Also under ThreadSanitizer: members read what the owner does.
TEST(members_have_events_named_after_what_the_owner_does) {
  static constexpr plait::TraceName kFirst = {"first", "test"};
  static constexpr plait::TraceName kSecond = {"second", "test"};
  char path[] = "/tmp/plait-team-trace-XXXXXX";
  const int fd = mkstemp(path);
  CHECK(fd >= 0);
  close(fd);
  plait::start_trace(path);
  {
    Team team(3, {});
    for (int32_t job = 0; job < 200; ++job) {
      const plait::TraceScope scope(job % 2 == 0 ? kFirst : kSecond);
      std::atomic<int32_t> num_begun{0};
      // Every thread has a chunk before any chunk ends.
      team.run(3, [&](int32_t, int32_t) {
        ++num_begun;
        while (num_begun.load() < 3) std::this_thread::yield();
      });
    }
    team.run(3, [](int32_t, int32_t) {});  // nobody said what this is
  }
  const plait::TraceTotals totals = plait::stop_trace();
  // The owner's scopes, and each of the two others' events.
  CHECK_EQ(totals.num_events, int64_t{200 + 2 * 200});
  CHECK_EQ(totals.num_dropped, int64_t{0});
  std::ifstream in(path);
  int num_first = 0;
  int num_lanes = 0;
  for (std::string line; std::getline(in, line);) {
    num_first += line.find("\"first\"") != std::string::npos ? 1 : 0;
    num_lanes += line.find("plait-team-") != std::string::npos ? 1 : 0;
  }
  CHECK_EQ(num_first, 300);
  CHECK_EQ(num_lanes, 2);
  std::remove(path);
}

TEST_MAIN()
