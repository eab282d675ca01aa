// Large page-aligned memory, zero-filled, with huge pages where the kernel gives them.
#pragma once

#include <cstddef>

namespace plait {

class Memory {
 public:
  Memory() = default;
  // Throws Error(kOutOfMemory) naming the size.
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace plait
