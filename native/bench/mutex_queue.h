// The queue that rings are held against: a mutex and two condition variables around a ring of slots.
// Threads: any. Every operation takes the mutex; wait_push and wait_pop block without a limit.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace plait {

template <typename T>
class MutexQueue {
 public:
  using Value = T;

  explicit MutexQueue(size_t capacity) : slots_(capacity) {}

  void wait_push(T&& value) {
    {
      std::unique_lock lock(mutex_);
      has_room_.wait(lock, [this] { return tail_ - head_ < slots_.size(); });
      slots_[tail_++ % slots_.size()] = std::move(value);
    }
    has_items_.notify_one();
  }
  void wait_pop(T& out) {
    {
      std::unique_lock lock(mutex_);
      has_items_.wait(lock, [this] { return tail_ != head_; });
      out = std::move(slots_[head_++ % slots_.size()]);
    }
    has_room_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_items_;
  std::condition_variable has_room_;
  std::vector<T> slots_;
  size_t head_ = 0;
  size_t tail_ = 0;
};

}  // namespace plait
