// A number that one thread writes and any thread reads, relaxed: right by itself, in no order with others.
#pragma once

#include <atomic>
#include <cstdint>

namespace plait {

template <typename T>
class Total {
 public:
  T get() const { return value_.load(std::memory_order_relaxed); }
  void add(T amount) { value_.store(get() + amount, std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{0};
};

}  // namespace plait
