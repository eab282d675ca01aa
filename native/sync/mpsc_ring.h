// Bounded lock-free multi-producer single-consumer ring with a sequence number per slot. Knows: slots. Must
// not know: how anyone sleeps (see channel.h).
//
// A slot's sequence, for the turn at position p (slot p & mask):
//   p              free: the producer that moves tail_ from p to p + 1 owns the slot
//   p + 1          full: the consumer owns the slot
//   p + capacity   free again, for the next turn
// Producers store p + 1 (release), paired with the consumer's acquire load; the consumer stores p + capacity
// (release), paired with the producers' acquire load. tail_ only hands out positions and orders nothing.
// head_ is written by the consumer only; others read it for size().
//
// A producer that the kernel stops between its claim and its publish hides later messages until it runs
// again; every producer must therefore ring the doorbell after its own push. Messages of one producer keep
// their order. Capacity is rounded up to a power of two, at least 2. No allocation after construction, apart
// from what moving a T does. The destructor destroys what was not popped; no other thread may use the ring by
// then.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "sync/ring_capacity.h"

namespace plait {

template <typename T>
class MpscRing {
  static_assert(std::is_default_constructible_v<T> && std::is_nothrow_move_assignable_v<T>,
                "a throwing move would leave a claimed slot that is never published");

 public:
  using Value = T;

  // Throws Error (kInvalidArgument) for a capacity of 0 or above kMaxRingCapacity.
  // One slot is not enough: "full" of a turn and "free" of the next would be the same number.
  explicit MpscRing(size_t capacity)
      : mask_(std::max(ring_size(capacity), size_t{2}) - 1), slots_(std::make_unique<Slot[]>(mask_ + 1)) {
    for (size_t i = 0; i <= mask_; ++i) slots_[i].sequence.store(i, std::memory_order_relaxed);
  }
  MpscRing(const MpscRing&) = delete;
  MpscRing& operator=(const MpscRing&) = delete;

  // Any thread. False when full; `value` is then left as it was.
  bool try_push(T&& value) {
    size_t tail = tail_.load(std::memory_order_relaxed);
    while (true) {
      Slot& slot = slots_[tail & mask_];
      const size_t sequence = slot.sequence.load(std::memory_order_acquire);
      // The difference is taken as signed, so that it stays right when the positions wrap.
      const auto ahead = static_cast<std::ptrdiff_t>(sequence - tail);
      if (ahead < 0) return false;
      if (ahead > 0) {
        tail = tail_.load(std::memory_order_relaxed);
      } else if (tail_.compare_exchange_weak(tail, tail + 1, std::memory_order_relaxed)) {
        slot.value = std::move(value);
        slot.sequence.store(tail + 1, std::memory_order_release);
        return true;
      }
    }
  }

  // Consumer only. False when nothing is published; `out` is then left as it was. The slot keeps a moved-from
  // T.
  bool try_pop(T& out) {
    const size_t head = head_.load(std::memory_order_relaxed);
    Slot& slot = slots_[head & mask_];
    if (slot.sequence.load(std::memory_order_acquire) != head + 1) return false;
    out = std::move(slot.value);
    slot.sequence.store(head + mask_ + 1, std::memory_order_release);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Consumer only. Moves up to `count` values out, oldest first, and says how many were published.
  size_t try_pop_n(T* out, size_t count) {
    const size_t head = head_.load(std::memory_order_relaxed);
    size_t num = 0;
    while (num < count) {
      Slot& slot = slots_[(head + num) & mask_];
      if (slot.sequence.load(std::memory_order_acquire) != head + num + 1) break;
      out[num] = std::move(slot.value);
      slot.sequence.store(head + num + mask_ + 1, std::memory_order_release);
      ++num;
    }
    if (num != 0) head_.store(head + num, std::memory_order_release);
    return num;
  }

  // Any thread; a snapshot, between 0 and capacity(). Counts claimed slots, also those not yet published.
  size_t size() const {
    const size_t head = head_.load(std::memory_order_acquire);
    const size_t tail = tail_.load(std::memory_order_acquire);
    return std::min(tail - head, capacity());
  }
  size_t capacity() const { return mask_ + 1; }

 private:
  struct Slot {
    std::atomic<size_t> sequence;
    T value{};
  };

  alignas(64) std::atomic<size_t> tail_{0};
  alignas(64) std::atomic<size_t> head_{0};
  alignas(64) const size_t mask_;
  const std::unique_ptr<Slot[]> slots_;
};

}  // namespace plait
