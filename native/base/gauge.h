// A number that one thread writes and any thread reads, relaxed: right by itself, in no order with others.
#pragma once

#include <atomic>
#include <cstdint>

namespace plait {

template <typename T>
class Gauge {
 public:
  T get() const { return value_.load(std::memory_order_relaxed); }
  void set(T value) { value_.store(value, std::memory_order_relaxed); }
  void add(T amount) { set(get() + amount); }

 private:
  std::atomic<T> value_{0};
};

}  // namespace plait
