#include "trace/trace.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/test.h"
#include "trace/trace_file.h"

using namespace plait;

namespace {

constexpr TraceName kOuter = {"outer", "test", {"a", "b", "c"}};
constexpr TraceName kInner = {"inner", "test", {}};
constexpr TraceName kMoment = {"moment", "test", {"n"}};

// A path that is gone when the test is.
struct TempPath {
  TempPath() {
    char name[] = "/tmp/plait-trace-XXXXXX";
    const int fd = mkstemp(name);
    CHECK(fd >= 0);
    close(fd);
    path = name;
  }
  ~TempPath() { std::remove(path.c_str()); }
  std::string path;
};

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(nothing_is_recorded_while_off) {
  CHECK(!trace_is_on());
  {
    const TraceScope scope(kOuter);
    CHECK(current_trace_name() == nullptr);
  }
  const TempPath file;
  start_trace(file.path);
  CHECK(trace_is_on());
  CHECK_EQ(stop_trace().num_events, int64_t{0});
  CHECK(!trace_is_on());
  CHECK(has(text_of(file.path), "\"traceEvents\":[\n]"));
}

TEST(scopes_become_events_with_their_numbers) {
  const TempPath file;
  start_trace(file.path);
  {
    TraceScope outer(kOuter, {1, 2, 3});
    CHECK(current_trace_name() == &kOuter);
    {
      const TraceScope inner(kInner);
      CHECK(current_trace_name() == &kInner);
    }
    CHECK(current_trace_name() == &kOuter);
    mark_trace(kMoment, {-7});
    outer.set_args({1, 2, 4});
  }
  CHECK(current_trace_name() == nullptr);
  const int64_t now = monotonic_ns();
  record_trace(kInner, now - 1500, now);
  const TraceTotals totals = stop_trace();
  CHECK_EQ(totals.num_events, int64_t{4});
  CHECK_EQ(totals.num_dropped, int64_t{0});
  CHECK_EQ(totals.error, std::string());
  const std::string text = text_of(file.path);
  CHECK(has(text, "\"name\":\"outer\",\"cat\":\"test\""));
  CHECK(has(text, "\"args\":{\"a\":1,\"b\":2,\"c\":4}}"));
  CHECK(has(text, "{\"ph\":\"i\",\"s\":\"t\""));
  CHECK(has(text, "\"args\":{\"n\":-7}}"));
  CHECK(has(text, "\"dur\":1.500}"));
  CHECK(has(text, "\"num_events\":4,\"num_dropped_events\":0"));
}

TEST(every_thread_has_a_lane_with_its_name) {
  const TempPath file;
  start_trace(file.path);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([i] {
      pthread_setname_np(pthread_self(), ("lane-" + std::to_string(i)).c_str());
      for (int k = 0; k < 100; ++k) const TraceScope scope(kInner);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(stop_trace().num_events, int64_t{300});
  const std::string text = text_of(file.path);
  for (int i = 0; i < 3; ++i) {
    const std::string name = "\"args\":{\"name\":\"lane-" + std::to_string(i) + "\"}";
    CHECK_EQ(count_of(text, name), size_t{1});
  }
  CHECK_EQ(count_of(text, "thread_name"), size_t{3});
}

TEST(what_does_not_fit_a_lane_is_counted_and_said) {
  const TempPath file;
  TraceLimits limits;
  limits.lane_events = 8;
  limits.flush_ns = 60'000'000'000;
  start_trace(file.path, limits);
  std::thread([] {
    for (int k = 0; k < 20; ++k) const TraceScope scope(kInner);
  }).join();
  const TraceTotals totals = stop_trace();
  CHECK_EQ(totals.num_events, int64_t{9});  // and the word about the rest
  CHECK_EQ(totals.num_dropped, int64_t{12});
  const std::string text = text_of(file.path);
  CHECK_EQ(count_of(text, "\"inner\""), size_t{8});
  CHECK(has(text, "\"events dropped\""));
  CHECK(has(text, "\"args\":{\"events\":12}}"));
  CHECK(has(text, "\"num_dropped_events\":12"));
}

TEST(a_full_file_stays_valid_and_says_what_is_missing) {
  const TempPath file;
  TraceLimits limits;
  limits.file_bytes = 500;
  start_trace(file.path, limits);
  std::thread([] {
    for (int k = 0; k < 100; ++k) const TraceScope scope(kInner);
  }).join();
  const TraceTotals totals = stop_trace();
  CHECK_EQ(totals.num_events + totals.num_dropped, int64_t{100});
  CHECK(totals.num_events > 0 && totals.num_events < 20);
  const std::string text = text_of(file.path);
  CHECK(text.size() < 1500);
  CHECK(has(text, "\"num_dropped_events\":" + std::to_string(totals.num_dropped)));
}

TEST(long_traces_are_fetched_while_they_run) {
  const TempPath file;
  TraceLimits limits;
  limits.lane_events = 64;
  limits.flush_ns = 1'000'000;
  start_trace(file.path, limits);
  int64_t num_recorded = 0;
  // Each handful waits until the one before is in the file: nothing is ever full.
  for (int round = 0; round < 20; ++round) {
    for (int k = 0; k < 50; ++k, ++num_recorded) const TraceScope scope(kInner);
    while (trace_totals().num_events < num_recorded) std::this_thread::yield();
  }
  const TraceTotals totals = stop_trace();
  CHECK_EQ(totals.num_events, num_recorded);
  CHECK_EQ(totals.num_dropped, int64_t{0});
}

TEST(traces_follow_each_other_and_do_not_mix) {
  std::atomic<bool> is_done{false};
  std::thread worker([&] {
    while (!is_done.load()) const TraceScope scope(kInner, {});
  });
  for (int round = 0; round < 5; ++round) {
    const TempPath file;
    const int64_t begin = monotonic_ns();
    TraceLimits limits;
    limits.flush_ns = 1'000'000;
    start_trace(file.path, limits);
    CHECK_THROWS(start_trace(file.path));
    while (trace_totals().num_events < 100) std::this_thread::yield();
    CHECK(stop_trace().num_events >= 100);
    const std::string text = text_of(file.path);
    CHECK(!has(text, "\"ts\":-"));
    CHECK_EQ(count_of(text, "thread_name"), size_t{1});
    const int64_t start = std::stoll(text.substr(text.find("start_monotonic_ns\":") + 20));
    CHECK(start >= begin && start <= monotonic_ns());
  }
  is_done.store(true);
  worker.join();
}

TEST(a_file_that_cannot_be_opened_is_an_error) {
  CHECK_THROWS(start_trace("/nowhere/at/all.json"));
  CHECK(!trace_is_on());
  CHECK_THROWS(start_trace("/"));
}

TEST(a_disk_that_is_full_is_told) {
  start_trace("/dev/full");
  for (int k = 0; k < 20'000; ++k) {
    const TraceScope scope(kInner);
    if (k % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const TraceTotals totals = stop_trace();
  CHECK(has(totals.error, "No space left"));
}

TEST(names_are_checked_and_kept_once) {
  const TraceName* name = trace_name("schedule", "main", {"tokens", "sequences"});
  CHECK(name == trace_name("schedule", "main", {"tokens", "sequences"}));
  CHECK(name != trace_name("schedule", "main", {"tokens"}));
  CHECK_EQ(std::string(name->args[1]), std::string("sequences"));
  CHECK(name->args[2] == nullptr);
  CHECK_THROWS(trace_name("a\"b", "main", {}));
  CHECK_THROWS(trace_name("a\\b", "main", {}));
  CHECK_THROWS(trace_name("\xc3\xa4", "main", {}));
  CHECK_THROWS(trace_name("", "main", {}));
  CHECK_THROWS(trace_name(std::string(65, 'x'), "main", {}));
  CHECK_THROWS(trace_name("a", "", {}));
  CHECK_THROWS(trace_name("a", "b", {"1", "2", "3", "4"}));
}

TEST_MAIN()
