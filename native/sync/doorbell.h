// A futex-based event count: one sleeping thread, any number of ringers. Knows: time, the futex call. Must
// not know: what the queues beside it carry.
//
// Use: the waiter reads epoch(), looks at its queues, and calls wait(epoch) if they were empty; a ringer
// pushes first and rings second. Then no wake-up is lost, and ring() makes no system call while nobody
// sleeps. One bell may stand for several queues; a single queue with a bell at each end is channel.h.
//
// Why not std::atomic::wait, which is a futex, too: it has no timeout, so that a thread could not sleep until
// a deadline or a heartbeat; it hides that a signal came, so that Ctrl-C would wait for a message; and it
// spins for a fixed time that nobody can set to nothing.
//
// Ringers: any thread. Waiter: meant for one thread; several are correct too (a ring wakes them all).
// Lifetime: a ringer may still be inside ring() when the waiter sees the new epoch, so neither side may own
// the doorbell alone: share it by std::shared_ptr. Releasing that pointer never needs Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "sync/adaptive_spin.h"

namespace plait {

class Doorbell : public std::enable_shared_from_this<Doorbell> {
 public:
  enum class Outcome { kRung, kTimeout, kInterrupted };

  Doorbell() = default;
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  // Wakes the waiter, or makes its next wait return at once. Never blocks. Pairs (release) with wait's and
  // epoch's acquire.
  void ring();
  // The count to pass to wait: read it, look at the queues, then wait if they were empty.
  uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  // Returns true when the epoch differs from `seen`, false after `timeout_ns` (< 0: no limit). Spins for at
  // most `spin_ns` first (adaptive_spin.h), then sleeps on the futex.
  bool wait(uint32_t seen, int64_t timeout_ns, int64_t spin_ns = 0);
  // The same, but also returns when a signal handler ran on this thread while it slept.
  Outcome wait_interruptible(uint32_t seen, int64_t timeout_ns, int64_t spin_ns = 0);

 private:
  bool is_rung(uint32_t seen) const { return epoch_.load(std::memory_order_acquire) != seen; }
  Outcome sleep_until(uint32_t seen, int64_t until_ns);

  // INVARIANT: ring() raises epoch_ before it reads sleepers_, a waiter raises sleepers_ before it reads
  // epoch_, all four sequentially consistent: at least one of the two sees the other.
  alignas(64) std::atomic<uint32_t> epoch_{0};     // written by ringers; the futex word
  alignas(64) std::atomic<uint32_t> sleepers_{0};  // written by waiters, read by ringers
  alignas(64) AdaptiveSpin spin_;                  // used by waiters
};

}  // namespace plait
