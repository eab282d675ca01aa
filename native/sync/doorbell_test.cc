// PLAIT_STRESS=1 makes the ping-pong long; stress_test.cc has the rest.
#include "sync/doorbell.h"

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include "base/test.h"

using plait::Doorbell;

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kLost = 20'000 * kMs;  // a wait this long means a lost wake-up

int64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

uint64_t num_ping_pongs() {
  const char* stress = std::getenv("PLAIT_STRESS");
  return stress != nullptr && std::strcmp(stress, "1") == 0 ? 600'000 : 10'000;
}

}  // namespace

TEST(wait_returns_at_once_after_ring) {
  Doorbell bell;
  const uint32_t seen = bell.epoch();
  bell.ring();
  CHECK(bell.wait(seen, -1));
  CHECK(bell.wait(seen, 0));
  CHECK(!bell.wait(bell.epoch(), 0));
}

TEST(wait_times_out_and_not_early) {
  Doorbell bell;
  for (const int64_t spin_ns : {int64_t{0}, int64_t{50'000}, 100 * kMs}) {
    const int64_t begin = clock_ns(CLOCK_MONOTONIC);
    CHECK(!bell.wait(bell.epoch(), 20 * kMs, spin_ns));
    CHECK(clock_ns(CLOCK_MONOTONIC) - begin >= 20 * kMs);
  }
}

TEST(idle_wait_uses_no_cpu) {
  Doorbell bell;
  const int64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  CHECK(!bell.wait(bell.epoch(), 300 * kMs, 50'000));
  CHECK(clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin < 20 * kMs);
}

TEST(huge_timeout_does_not_overflow) {
  Doorbell bell;
  std::thread ringer([&bell] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    bell.ring();
  });
  CHECK(bell.wait(bell.epoch(), INT64_MAX, INT64_MAX / 2));
  ringer.join();
}

TEST(ring_wakes_every_sleeper) {
  Doorbell bell;
  const uint32_t seen = bell.epoch();
  std::atomic<int> num_woken{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 4; ++i) {
    sleepers.emplace_back([&bell, &num_woken, seen] { num_woken += bell.wait(seen, kLost) ? 1 : 0; });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  bell.ring();
  for (std::thread& sleeper : sleepers) sleeper.join();
  CHECK_EQ(num_woken.load(), 4);
}

TEST(signal_interrupts_only_the_interruptible_wait) {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  struct sigaction before;
  CHECK_EQ(sigaction(SIGUSR1, &action, &before), 0);
  Doorbell bell;
  std::atomic<bool> is_done{false};
  const pthread_t waiter = pthread_self();
  std::thread sender([&is_done, waiter] {
    while (!is_done.load()) {
      pthread_kill(waiter, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  CHECK(bell.wait_interruptible(bell.epoch(), kLost) == Doorbell::Outcome::kInterrupted);
  const int64_t begin = clock_ns(CLOCK_MONOTONIC);
  CHECK(!bell.wait(bell.epoch(), 60 * kMs));
  CHECK(clock_ns(CLOCK_MONOTONIC) - begin >= 60 * kMs);
  is_done.store(true);
  sender.join();
  sigaction(SIGUSR1, &before, nullptr);
}

// Two threads that only ever move by the other's ring: any lost wake-up stops both.
TEST(ping_pong_loses_no_wake_up) {
  const uint64_t num_rounds = num_ping_pongs();
  for (const int64_t spin_ns : {int64_t{0}, int64_t{20'000}}) {
    Doorbell ping;
    Doorbell pong;
    std::atomic<uint64_t> ball{0};
    std::atomic<int> num_lost{0};
    const auto play = [&](Doorbell& own, Doorbell& other, uint64_t parity) {
      for (uint64_t turn = parity; turn < num_rounds; turn += 2) {
        while (true) {
          const uint32_t seen = own.epoch();
          if (ball.load(std::memory_order_relaxed) == turn || num_lost.load() != 0) break;
          if (!own.wait(seen, kLost, spin_ns)) ++num_lost;
        }
        ball.store(turn + 1, std::memory_order_relaxed);
        other.ring();
      }
    };
    std::thread second([&] { play(pong, ping, 1); });
    play(ping, pong, 0);
    second.join();
    CHECK_EQ(num_lost.load(), 0);
    CHECK_EQ(ball.load(), num_rounds);
  }
}

TEST_MAIN()
