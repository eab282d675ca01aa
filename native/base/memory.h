// Large page-aligned memory, zero-filled, with huge pages where the kernel gives them.
#pragma once

#include <cstddef>
#include <cstdint>

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

  // Takes the pages of a range now, with up to `num_threads` threads; what is in them stays, nobody else
  // writes meanwhile, and a range beyond the end is cut off. Otherwise a page comes when it is first written,
  // and whoever writes waits until it is cleared (and, in a virtual machine, found): up to 5 ms for a huge
  // page were seen.
  void prefault(size_t begin, size_t num_bytes, int32_t num_threads);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace plait
