// Spinning before a sleep, for as long as it has paid lately. Knows: time. Must not know: what is waited for,
// how anyone sleeps.
//
// A spin catches what comes soon in a tenth of a microsecond, where a futex needs microseconds and a system
// call on each side; what comes late it only makes dearer. So the spin shrinks to a sixteenth while things
// come late and grows back when they come soon again.
//
// Threads: any number may share one. Allocates nothing, blocks for the spin only.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "sync/cpu_relax.h"

namespace plait {

class AdaptiveSpin {
 public:
  // Calls `poll` until it returns true (then true), or until the present share of `spin_ns` has passed since
  // `start_ns`, or until `end_ns`. Polls once at least, except when spin_ns <= 0.
  template <typename Poll>
  bool spin(int64_t start_ns, int64_t spin_ns, int64_t end_ns, Poll&& poll) const {
    if (spin_ns <= 0) return false;
    const int64_t share = share_.load(std::memory_order_relaxed);
    const int64_t stop_ns = std::min(deadline_ns(start_ns, spin_ns / kFullShare * share), end_ns);
    do {
      for (int i = 0; i < kPollsPerClockRead; ++i) {
        if (poll()) return true;
        cpu_relax();
      }
    } while (monotonic_ns() < stop_ns);
    return false;
  }

  // After each wait that had a spin: whether a full one would have caught what came, asleep by then or not.
  void learn(bool would_catch) {
    const int32_t share = share_.load(std::memory_order_relaxed);
    share_.store(would_catch ? std::min(share * 2, kFullShare) : std::max(share / 2, 1),
                 std::memory_order_relaxed);
  }

 private:
  static constexpr int32_t kFullShare = 16;
  static constexpr int kPollsPerClockRead = 16;

  // Sixteenths of spin_ns to spin. Relaxed: a lost update only costs some spinning.
  std::atomic<int32_t> share_{kFullShare};
};

}  // namespace plait
