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

// 0, or the number of the error.
int take_pages(std::byte* begin, size_t num_bytes) {
  if (madvise(begin, num_bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  // Before Linux 5.14. An addition of 0 keeps what is there, whoever writes meanwhile.
  for (size_t at = 0; at < num_bytes; at += kSmallPage) {
    __atomic_fetch_add(reinterpret_cast<uint8_t*>(begin + at), uint8_t{0}, __ATOMIC_RELAXED);
  }
  return 0;
}

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
  // madvise wants whole pages; those at the ends are shared with the neighbours, which does not matter.
  const size_t first = std::min(begin, size_) / kSmallPage * kSmallPage;
  const size_t end = std::min(size_, begin + num_bytes);
  std::atomic<size_t> next{first};
  std::atomic<int> failure{0};
  fork_join(static_cast<size_t>(num_threads), [&] {
    for (size_t at = next.fetch_add(kHugePage); at < end; at = next.fetch_add(kHugePage)) {
      const int error = take_pages(data_ + at, std::min(kHugePage, end - at));
      if (error != 0) failure.store(error);
    }
  });
  if (failure.load() != 0) {
    throw Error(ErrorCode::kOutOfMemory, "cannot take " + std::to_string(num_bytes) +
                                             " bytes of memory: " + std::strerror(failure.load()));
  }
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
