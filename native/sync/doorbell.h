// A futex-based event count: one sleeping thread, any number of ringers.
// Ringers: any thread. Waiter: one thread. An idle waiter uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>

namespace plait {

class Doorbell {
 public:
  // Wakes the waiter, or makes its next wait return at once. Never blocks. Pairs (release) with wait's acquire.
  void ring();
  // The count to pass to wait: read it, look at the queues, then wait if they were empty.
  uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  // Returns true when the epoch differs from `seen`, false after `timeout_ns` (< 0: no limit). Spins for
  // `spin_ns` first, then sleeps on the futex.
  bool wait(uint32_t seen, int64_t timeout_ns, int64_t spin_ns = 0);

 private:
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
};

}  // namespace plait
