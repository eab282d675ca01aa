// A bounded ring with a doorbell at each end: a consumer can sleep until there is a message, a producer until
// there is room. Knows: rings, waiting. Must not know: what is carried.
//
// Threads: as many producers and consumers as the ring allows (SpscRing: one and one; MpscRing: any number of
// producers, one consumer); close, is_closed, size and capacity: any thread.
// try_x never blocks and never allocates (apart from what moving a Value does); its doorbell makes a system
// call only when somebody sleeps at the other end. wait_x polls the ring for a while (adaptive_spin.h), since
// what comes soon is caught much sooner so, and sleeps on a futex then. Timeouts are in nanoseconds; < 0: no
// limit.
// Memory order: a push happens before the pop of its message (the ring's release and acquire). A sleeper
// reads the epoch, looks at the ring, then sleeps on that epoch; the other side moves the ring, then raises
// the epoch: see doorbell.h for why no wake-up is lost.
// Both doorbells live in the channel, so a channel must outlive the calls on it, ring() included: own it by a
// pointer that both sides share, or by something that joins both.
// A full ring wakes all producers that sleep at each pop. With a queue that is always full or always empty,
// threads hand over for each message; the batch forms ring once for all of theirs.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "sync/adaptive_spin.h"
#include "sync/doorbell.h"

namespace plait {

template <typename Ring>
class Channel {
 public:
  using Value = typename Ring::Value;

  static constexpr int64_t kSpinNs = 20'000;

  // Throws Error (kInvalidArgument) for a capacity that the ring refuses. `spin_ns`: the longest polling of a
  // wait before it sleeps; 0: sleep at once.
  explicit Channel(size_t capacity, int64_t spin_ns = kSpinNs) : ring_(capacity), spin_ns_(spin_ns) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Producer. False when full or closed; `value` is then left as it was.
  bool try_push(Value&& value) {
    if (is_closed() || !ring_.try_push(std::move(value))) return false;
    items_.ring();
    return true;
  }
  // Consumer. False when there is nothing; `out` is then left as it was.
  bool try_pop(Value& out) {
    if (!ring_.try_pop(out)) return false;
    room_.ring();
    return true;
  }
  // The same for up to `count` values; they say how many. Only for rings that have them.
  size_t try_push_n(Value* values, size_t count) {
    if (is_closed()) return 0;
    const size_t num = ring_.try_push_n(values, count);
    if (num != 0) items_.ring();
    return num;
  }
  size_t try_pop_n(Value* out, size_t count) {
    const size_t num = ring_.try_pop_n(out, count);
    if (num != 0) room_.ring();
    return num;
  }

  // Producer. Waits for room. False after `timeout_ns`, or when closed; `value` is then left as it was.
  bool wait_push(Value&& value, int64_t timeout_ns) {
    return wait(room_, room_spin_, timeout_ns, [&] { return try_push(std::move(value)); });
  }
  // Consumer. Waits for a message. False after `timeout_ns`, or when closed and everything pushed before the
  // close has been popped.
  bool wait_pop(Value& out, int64_t timeout_ns) {
    return wait(items_, items_spin_, timeout_ns, [&] { return try_pop(out); });
  }
  // The same for up to `count` values, 0 instead of false: waits for the first one only.
  size_t wait_pop_n(Value* out, size_t count, int64_t timeout_ns) {
    size_t num = 0;
    wait(items_, items_spin_, timeout_ns, [&] { return (num = try_pop_n(out, count)) != 0; });
    return num;
  }

  // Refuses later pushes and ends all waits. What was pushed before can still be popped; a push by another
  // thread at the same moment may stay in the ring. Idempotent, never blocks.
  void close() {
    is_closed_.store(true, std::memory_order_release);
    items_.ring();
    room_.ring();
  }
  bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }

  size_t size() const { return ring_.size(); }
  size_t capacity() const { return ring_.capacity(); }

 private:
  template <typename Attempt>
  bool wait(Doorbell& bell, AdaptiveSpin& spin, int64_t timeout_ns, Attempt&& attempt) {
    if (attempt()) return true;
    if (timeout_ns == 0) return false;
    const int64_t start_ns = monotonic_ns();
    const int64_t until_ns = deadline_ns(start_ns, timeout_ns);
    bool is_done = spin.spin(start_ns, spin_ns_, until_ns, attempt);
    while (!is_done) {
      const uint32_t seen = bell.epoch();
      // In this order: what was pushed before the close is seen by the attempt after it.
      const bool is_last = is_closed();
      is_done = attempt();
      if (is_done || is_last) break;
      const int64_t left_ns = until_ns == kNeverNs ? -1 : std::max<int64_t>(until_ns - monotonic_ns(), 0);
      if (left_ns == 0) break;
      bell.wait(seen, left_ns);
    }
    if (spin_ns_ > 0) spin.learn(is_done && monotonic_ns() - start_ns <= spin_ns_);
    return is_done;
  }

  Ring ring_;
  const int64_t spin_ns_;
  std::atomic<bool> is_closed_{false};  // close's release pairs with everyone's acquire
  Doorbell items_;                      // rung by producers, slept on by the consumer
  Doorbell room_;                       // rung by the consumer, slept on by producers
  alignas(64) AdaptiveSpin items_spin_;
  alignas(64) AdaptiveSpin room_spin_;
};

}  // namespace plait
