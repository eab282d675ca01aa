// Bounded lock-free single-producer single-consumer ring.
// Owner of head_ and of its cached copy of tail: the consumer. Owner of tail_ and of its cached head: the
// producer. The producer's release store of tail_ pairs with the consumer's acquire load, and the other way
// round for head_. Capacity is rounded up to a power of two. No allocation after construction.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

namespace plait {

template <typename T>
class SpscRing {
 public:
  explicit SpscRing(size_t capacity) {
    size_t size = 1;
    while (size < capacity) size *= 2;
    slots_.resize(size);
  }
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  // Producer only. False when full; `value` is then left as it was.
  bool try_push(T&& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - cached_head_ == slots_.size()) {
      cached_head_ = head_.load(std::memory_order_acquire);
      if (tail - cached_head_ == slots_.size()) return false;
    }
    slots_[tail & (slots_.size() - 1)] = std::move(value);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // Consumer only. False when empty.
  bool try_pop(T& out) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == cached_tail_) {
      cached_tail_ = tail_.load(std::memory_order_acquire);
      if (head == cached_tail_) return false;
    }
    out = std::move(slots_[head & (slots_.size() - 1)]);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Any thread; a snapshot.
  size_t size() const {
    const size_t head = head_.load(std::memory_order_acquire);
    const size_t tail = tail_.load(std::memory_order_acquire);
    return tail >= head ? tail - head : 0;
  }
  size_t capacity() const { return slots_.size(); }

 private:
  alignas(64) std::atomic<size_t> head_{0};
  size_t cached_tail_ = 0;
  alignas(64) std::atomic<size_t> tail_{0};
  size_t cached_head_ = 0;
  alignas(64) std::vector<T> slots_;
};

}  // namespace plait
