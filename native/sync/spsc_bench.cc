// Messages per second through the rings across threads, and the latency of a doorbell's wake-up. The last
// line is one JSON object.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "sync/doorbell.h"
#include "sync/mpsc_ring.h"
#include "sync/spsc_ring.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Both sides yield when the ring is full or empty, so that the numbers also mean something on few cores.
template <typename Ring>
double messages_per_s(int num_producers, uint64_t num_messages) {
  Ring ring(4096);
  const uint64_t per_producer = num_messages / num_producers;
  const Clock::time_point begin = Clock::now();
  std::vector<std::thread> producers;
  for (int p = 0; p < num_producers; ++p) {
    producers.emplace_back([&ring, per_producer] {
      for (uint64_t i = 0; i < per_producer; ++i) {
        while (!ring.try_push(uint64_t{i})) std::this_thread::yield();
      }
    });
  }
  uint64_t out = 0;
  for (uint64_t i = 0; i < per_producer * num_producers; ++i) {
    while (!ring.try_pop(out)) std::this_thread::yield();
  }
  const double elapsed_s = seconds_since(begin);
  for (std::thread& producer : producers) producer.join();
  return static_cast<double>(per_producer * num_producers) / elapsed_s;
}

double ring_without_sleeper_ns() {
  constexpr int kNumRings = 5'000'000;
  plait::Doorbell bell;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kNumRings; ++i) bell.ring();
  return seconds_since(begin) * 1e9 / kNumRings;
}

// Median time from ring() to the return of wait(), with the waiter `pause` long in its wait.
double wake_latency_us(int64_t spin_ns, std::chrono::microseconds pause, int num_rounds) {
  plait::Doorbell bell;
  std::atomic<int64_t> rung_at_ns{0};
  std::atomic<int> num_served{0};
  std::vector<double> latencies_us;
  std::thread waiter([&] {
    for (int i = 0; i < num_rounds; ++i) {
      const uint32_t seen = bell.epoch();
      num_served.store(i + 1, std::memory_order_release);
      bell.wait(seen, -1, spin_ns);
      const int64_t now_ns = Clock::now().time_since_epoch().count();
      latencies_us.push_back(static_cast<double>(now_ns - rung_at_ns.load(std::memory_order_relaxed)) * 1e-3);
    }
  });
  for (int i = 0; i < num_rounds; ++i) {
    while (num_served.load(std::memory_order_acquire) != i + 1) std::this_thread::yield();
    std::this_thread::sleep_for(pause);
    rung_at_ns.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    bell.ring();
  }
  waiter.join();
  std::nth_element(latencies_us.begin(), latencies_us.begin() + num_rounds / 2, latencies_us.end());
  return latencies_us[num_rounds / 2];
}

}  // namespace

int main() {
  const double spsc = messages_per_s<plait::SpscRing<uint64_t>>(1, 20'000'000);
  const double mpsc_one = messages_per_s<plait::MpscRing<uint64_t>>(1, 10'000'000);
  const double mpsc_three = messages_per_s<plait::MpscRing<uint64_t>>(3, 6'000'000);
  const double ring_ns = ring_without_sleeper_ns();
  const double asleep_us = wake_latency_us(0, std::chrono::microseconds(200), 2000);
  const double spinning_us = wake_latency_us(1'000'000, std::chrono::microseconds(50), 2000);
  std::printf("spsc %.1f M/s, mpsc %.1f M/s (1 producer), %.1f M/s (3 producers)\n", spsc * 1e-6,
              mpsc_one * 1e-6, mpsc_three * 1e-6);
  std::printf("ring, nobody asleep %.1f ns; wake from the futex %.1f us, from the spin %.2f us\n", ring_ns,
              asleep_us, spinning_us);
  std::printf(
      "{\"spsc_messages_per_s\": %.0f, \"mpsc1_messages_per_s\": %.0f, \"mpsc3_messages_per_s\": %.0f, "
      "\"ring_ns\": %.1f, \"wake_asleep_us\": %.2f, \"wake_spinning_us\": %.3f, \"num_cores\": %u}\n",
      spsc, mpsc_one, mpsc_three, ring_ns, asleep_us, spinning_us, std::thread::hardware_concurrency());
  return 0;
}
