// The timers of queues: every kind is timed at every size, and senseless work is refused.
#include "bench/queue_timer.h"

#include <sched.h>

#include <string>

#include "base/test.h"

using namespace plait;

namespace {

void check_timed(const Timing& timing, size_t num_runs) {
  CHECK_EQ(timing.difference, std::string());
  CHECK_EQ(timing.seconds.size(), num_runs);
  for (const double seconds : timing.seconds) CHECK(seconds > 0 && seconds < 10);
}

}  // namespace

TEST(every_kind_is_timed_at_every_size) {
  for (const char* name : {"spsc", "spsc-batch", "mpsc", "channel", "mutex"}) {
    const QueueKind kind = queue_kind(name);
    const bool is_single = kind == QueueKind::kSpsc || kind == QueueKind::kSpscBatch;
    for (const int32_t message_bytes : {8, 64}) {
      for (const int32_t num_producers : {1, 3}) {
        if (is_single && num_producers != 1) continue;
        check_timed(time_messages({kind, num_producers, message_bytes, 20'000, 64, {}}, 2), 2);
      }
    }
    check_timed(time_round_trips(kind, 500, {}), 500);
  }
}

TEST(threads_are_pinned_and_the_caller_is_let_go) {
  cpu_set_t before;
  CPU_ZERO(&before);
  CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int32_t cpu = 0;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &before)) ++cpu;
  check_timed(time_messages({QueueKind::kChannel, 2, 8, 1000, 8, {cpu}}, 1), 1);
  check_timed(time_round_trips(QueueKind::kSpsc, 50, {cpu}), 50);
  cpu_set_t after;
  CPU_ZERO(&after);
  CHECK_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  CHECK(CPU_EQUAL(&before, &after));
}

TEST(a_line_transfer_takes_time) {
  const auto runs = time_line_transfers(200, 2, {});
  CHECK_EQ(runs.size(), size_t{2});
  for (const double seconds : runs) CHECK(seconds > 1e-10 && seconds < 1);
}

TEST(senseless_work_is_refused) {
  CHECK_THROWS(queue_kind("ring"));
  CHECK_THROWS(time_messages({QueueKind::kSpsc, 2, 8, 100, 8, {}}, 1));
  CHECK_THROWS(time_messages({QueueKind::kMpsc, 0, 8, 100, 8, {}}, 1));
  CHECK_THROWS(time_messages({QueueKind::kMpsc, 3, 8, 2, 8, {}}, 1));
  CHECK_THROWS(time_messages({QueueKind::kMpsc, 3, 16, 100, 8, {}}, 1));
  CHECK_THROWS(time_messages({QueueKind::kMpsc, 3, 8, 100, 0, {}}, 1));
  CHECK_THROWS(time_messages({QueueKind::kMutex, 1, 8, 100, 8, {}}, 0));
  CHECK_THROWS(time_round_trips(QueueKind::kSpsc, 0, {}));
  CHECK_THROWS(time_line_transfers(0, 1, {}));
}

TEST(a_metronome_rings_until_it_is_stopped) {
  const auto bell = std::make_shared<Doorbell>();
  Metronome metronome(bell, 1'000'000);
  int64_t last = 0;
  uint32_t seen = bell->epoch();
  for (int i = 0; i < 3; ++i) {
    CHECK(bell->wait(seen, 20'000'000'000));
    seen = bell->epoch();
    CHECK(metronome.rung_at_ns() > last && metronome.rung_at_ns() <= monotonic_ns());
    last = metronome.rung_at_ns();
  }
  metronome.stop();
  metronome.stop();
  CHECK(!bell->wait(bell->epoch(), 5'000'000));
  CHECK_THROWS(Metronome(bell, 10));
  CHECK_THROWS(Metronome(nullptr, 1'000'000));
}

TEST_MAIN()
