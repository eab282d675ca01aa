// Bounded lock-free single-producer single-consumer ring. Knows: slots. Must not know: how anyone sleeps (see
// channel.h).
// Owner of head_ and of its cached copy of tail: the consumer. Owner of tail_ and of its cached head: the
// producer. The producer's release store of tail_ pairs with the consumer's acquire load, and the other way
// round for head_. Slot i belongs to the consumer while head <= i < tail, else to the producer.
// Capacity is rounded up to a power of two. No allocation after construction, apart from what moving a T
// does. The destructor destroys what was not popped; no other thread may use the ring by then.
// The two sides write different cache lines and look at the other's line only when their copy of it says full
// or empty: while the ring is neither, messages cost no line but those that they lie on.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "sync/ring_capacity.h"

namespace plait {

template <typename T>
class SpscRing {
  static_assert(std::is_default_constructible_v<T> && std::is_nothrow_move_assignable_v<T>,
                "a throwing move would lose a message half way");

 public:
  using Value = T;

  // Throws Error (kInvalidArgument) for a capacity of 0 or above kMaxRingCapacity.
  explicit SpscRing(size_t capacity) : slots_(ring_size(capacity)), mask_(slots_.size() - 1) {}
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  // Producer only. False when full; `value` is then left as it was.
  bool try_push(T&& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - cached_head_ > mask_) {
      cached_head_ = head_.load(std::memory_order_acquire);
      if (tail - cached_head_ > mask_) return false;
    }
    slots_[tail & mask_] = std::move(value);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // Consumer only. False when empty; `out` is then left as it was. The slot keeps a moved-from T.
  bool try_pop(T& out) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == cached_tail_) {
      cached_tail_ = tail_.load(std::memory_order_acquire);
      if (head == cached_tail_) return false;
    }
    out = std::move(slots_[head & mask_]);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Producer only. Moves up to `count` values in, in order, and says how many had room; the others are left
  // as they were. One release store for all of them.
  size_t try_push_n(T* values, size_t count) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (capacity() - (tail - cached_head_) < count) cached_head_ = head_.load(std::memory_order_acquire);
    const size_t num = std::min(count, capacity() - (tail - cached_head_));
    for (size_t i = 0; i < num; ++i) slots_[(tail + i) & mask_] = std::move(values[i]);
    if (num != 0) tail_.store(tail + num, std::memory_order_release);
    return num;
  }

  // Consumer only. Moves up to `count` values out, oldest first, and says how many there were.
  size_t try_pop_n(T* out, size_t count) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (cached_tail_ - head < count) cached_tail_ = tail_.load(std::memory_order_acquire);
    const size_t num = std::min(count, cached_tail_ - head);
    for (size_t i = 0; i < num; ++i) out[i] = std::move(slots_[(head + i) & mask_]);
    if (num != 0) head_.store(head + num, std::memory_order_release);
    return num;
  }

  // Any thread; a snapshot, between 0 and capacity(). Exact for the thread that owns the only moving side.
  size_t size() const {
    const size_t head = head_.load(std::memory_order_acquire);
    const size_t tail = tail_.load(std::memory_order_acquire);
    return std::min(tail - head, capacity());
  }
  size_t capacity() const { return mask_ + 1; }

 private:
  alignas(64) std::atomic<size_t> head_{0};
  size_t cached_tail_ = 0;
  alignas(64) std::atomic<size_t> tail_{0};
  size_t cached_head_ = 0;
  alignas(64) std::vector<T> slots_;  // the vector itself is constant after construction
  const size_t mask_;
};

}  // namespace plait
