#include "base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/fork_join.h"

namespace plait {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = 4096;

}  // namespace

Memory::Memory(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory,
                "cannot map " + std::to_string(bytes) + " bytes of memory: " + std::strerror(errno));
  }
  madvise(mapped, bytes, MADV_HUGEPAGE);  // a hint: refusal costs speed only
  data_ = static_cast<std::byte*>(mapped);
}

void Memory::prefault(size_t begin, size_t num_bytes, int32_t num_threads) {
  const size_t first = std::min(begin, size_) / kSmallPage * kSmallPage;
  const size_t end = std::min(size_, begin + num_bytes);
  std::atomic<size_t> next{first};
  fork_join(static_cast<size_t>(num_threads), [&] {
    for (size_t piece = next.fetch_add(kHugePage); piece < end; piece = next.fetch_add(kHugePage)) {
      const size_t piece_end = std::min(piece + kHugePage, end);
      for (size_t at = piece; at < piece_end; at += kSmallPage) {
        volatile std::byte& first_of_page = data_[at];
        const std::byte seen = first_of_page;
        first_of_page = seen;  // a read alone would get the page of zeros that all share
      }
    }
  });
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, size_);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace plait
