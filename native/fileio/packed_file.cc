#include "fileio/packed_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>

#include "base/fork_join.h"
#include "fileio/checksum.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace plait {
namespace {

struct PackedHead {
  std::array<char, 8> magic = {'p', 'l', 'a', 'i', 't', 'p', 'k', '\n'};
  uint32_t version = kPackedFileVersion;
  uint32_t chunk_bytes = kPackedChunkBytes;
  uint64_t key_bytes = 0;
  uint64_t data_offset = 0;
  uint64_t data_bytes = 0;
  uint64_t checksum = 0;  // of [0, data_offset), this field being 0
  std::array<uint64_t, 2> unused = {};
};
static_assert(sizeof(PackedHead) == 64 && std::endian::native == std::endian::little);

constexpr size_t kChecksumAt = 40;

// Some disks answer only several readers at full speed, whatever the number of cores.
constexpr int32_t kMinReaders = 4;
constexpr int32_t kMaxReaders = 16;
constexpr int kLockTries = 20;
constexpr timespec kLockPause = {0, 5'000'000};

size_t num_chunks_of(uint64_t num_bytes) { return (num_bytes + kPackedChunkBytes - 1) / kPackedChunkBytes; }

[[noreturn]] void throw_damaged(const std::string& what) { throw Error(ErrorCode::kInvalidFile, what); }

Descriptor open_file(int folder, const std::string& name) {
  // O_NONBLOCK: opening a FIFO that nobody writes must not hang.
  Descriptor file(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.is_open() || errno == ENOENT) return file;
  const int number = errno;
  if (number == ELOOP) throw_damaged("it is a symbolic link");
  if (number == EMFILE || number == ENFILE || number == ENOMEM) throw_system("cannot open", number);
  throw_damaged("cannot open: " + std::generic_category().message(number));
}

void check_trust(const struct stat& status, uint64_t expected_bytes) {
  if (!S_ISREG(status.st_mode)) throw_damaged("it is not a regular file");
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    throw_damaged("it belongs to user " + std::to_string(status.st_uid));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) throw_damaged("other users may write to it");
  if (static_cast<uint64_t>(status.st_size) != expected_bytes) {
    throw_damaged("it has " + std::to_string(status.st_size) + " bytes instead of " +
                  std::to_string(expected_bytes));
  }
}

// For as long as the file is open nobody removes it. Without a lock it is as good, only not kept.
void lock_shared(int file) {
  for (int i = 0; i < kLockTries && ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK; ++i) {
    ::nanosleep(&kLockPause, nullptr);  // its writer is about to let go
  }
}

void read_exactly(int file, std::byte* to, size_t size, uint64_t offset) {
  while (size > 0) {
    const ssize_t got = ::pread(file, to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_damaged("cannot read: " + std::generic_category().message(errno));
    if (got == 0) throw_damaged("it is shorter than it was");
    to += got;
    size -= static_cast<size_t>(got);
    offset += static_cast<uint64_t>(got);
  }
}

// The checksums of the chunks, out of a head that is exactly what it must be.
std::vector<uint64_t> read_checksums(int file, const PackedSpec& spec) {
  std::vector<std::byte> head(packed_data_offset(spec));
  read_exactly(file, head.data(), head.size(), 0);
  std::vector<uint64_t> checksums(num_chunks_of(spec.num_bytes));
  std::memcpy(checksums.data(), head.data() + sizeof(PackedHead) + spec.key.size(),
              checksums.size() * sizeof(uint64_t));
  if (head != packed_head(spec, checksums)) throw_damaged("its head is damaged, or it holds other data");
  return checksums;
}

// An address for `size` bytes at a multiple of kPackedAlignment: only there can a file have huge pages.
std::byte* reserve_aligned(size_t size) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t whole_pages = (size + page - 1) / page * page;
  const size_t room = whole_pages + kPackedAlignment;
  void* mapped = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw_system("cannot map " + std::to_string(size) + " bytes", errno);
  auto* begin = static_cast<std::byte*>(mapped);
  const size_t skip = (0 - reinterpret_cast<uintptr_t>(begin)) % kPackedAlignment;
  if (skip > 0) ::munmap(begin, skip);
  ::munmap(begin + skip + whole_pages, kPackedAlignment - skip);
  return begin + skip;
}

// Brings a chunk into memory and into the page table. An unreadable sector must be an error here: later it
// would be a signal that ends the process.
void populate(int file, std::span<const std::byte> chunk, uint64_t offset) {
  if (::madvise(const_cast<std::byte*>(chunk.data()), chunk.size(), MADV_POPULATE_READ) == 0) return;
  if (errno == EFAULT) throw_damaged("cannot read: input/output error");
  std::vector<std::byte> copy(chunk.size());  // before Linux 5.14
  read_exactly(file, copy.data(), copy.size(), offset);
}

// Runs `fetch(at, chunk)` on each chunk of `data`, with several threads, and checks what is there afterwards.
template <typename Fetch>
void fetch_chunks(std::span<const std::byte> data, std::span<const uint64_t> checksums, int32_t num_threads,
                  const Fetch& fetch) {
  std::atomic<size_t> next{0};
  std::mutex failure_lock;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (size_t i = next.fetch_add(1); i < checksums.size(); i = next.fetch_add(1)) {
        const size_t at = i * kPackedChunkBytes;
        const auto chunk = data.subspan(at, std::min(kPackedChunkBytes, data.size() - at));
        fetch(at, chunk);
        if (checksum64(chunk) != checksums[i]) throw_damaged("its data are damaged");
      }
    } catch (...) {
      const std::lock_guard lock(failure_lock);
      failure = std::current_exception();
      next = checksums.size();
    }
  };
  const auto wanted = static_cast<size_t>(std::clamp(num_threads, kMinReaders, kMaxReaders));
  fork_join(std::min(wanted, checksums.size()), work);
  if (failure) std::rethrow_exception(failure);
}

// Less than nine tenths of the whole huge pages that `memory` could have.
bool lacks_huge_pages(std::span<const std::byte> memory) {
  return num_huge_bytes(memory) / 9 * 10 < memory.size() / kHugePageBytes * kHugePageBytes;
}

}  // namespace

size_t packed_data_offset(const PackedSpec& spec) {
  const size_t used = sizeof(PackedHead) + spec.key.size() + num_chunks_of(spec.num_bytes) * sizeof(uint64_t);
  return (used + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
}

std::vector<std::byte> packed_head(const PackedSpec& spec, std::span<const uint64_t> checksums) {
  PackedHead head;
  head.key_bytes = spec.key.size();
  head.data_offset = packed_data_offset(spec);
  head.data_bytes = spec.num_bytes;
  std::vector<std::byte> bytes(head.data_offset);
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), spec.key.data(), spec.key.size());
  std::memcpy(bytes.data() + sizeof(head) + spec.key.size(), checksums.data(), checksums.size_bytes());
  const uint64_t checksum = checksum64(bytes);
  std::memcpy(bytes.data() + kChecksumAt, &checksum, sizeof(checksum));
  return bytes;
}

std::shared_ptr<const PackedFile> PackedFile::open(int folder, const std::string& name,
                                                   const PackedSpec& spec, int32_t num_threads,
                                                   PackedMemory memory) {
  const std::shared_ptr<PackedFile> opened(new PackedFile(open_file(folder, name)));
  const int file = opened->file_.get();
  if (file < 0) return nullptr;
  struct stat status = {};
  if (::fstat(file, &status) != 0) throw_system("cannot stat", errno);
  check_trust(status, packed_data_offset(spec) + spec.num_bytes);
  lock_shared(file);
  // Reading the head must not bring the beginning of the data in small pages.
  ::posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
  const std::vector<uint64_t> checksums = read_checksums(file, spec);
  // Small pages cost a third of the speed at which weights are read.
  const bool is_mapped = memory != PackedMemory::kPrivate &&
                         opened->fetch_mapped(spec, checksums, num_threads, memory == PackedMemory::kShared);
  if (!is_mapped) opened->fetch_copy(spec, checksums, num_threads);
  // Whoever bounds the folder drops first what was used longest ago. Only the owner may do this.
  ::futimens(file, nullptr);
  return opened;
}

bool PackedFile::fetch_mapped(const PackedSpec& spec, std::span<const uint64_t> checksums,
                              int32_t num_threads, bool must_succeed) {
  const uint64_t data_offset = packed_data_offset(spec);
  map(data_offset, spec.num_bytes);
  const auto fetch = [&](size_t at, std::span<const std::byte> chunk) {
    populate(file_.get(), chunk, data_offset + at);
  };
  const bool wants_huge = are_huge_pages_enabled();
  if (wants_huge && data_.size() >= kPackedChunkBytes) {
    const auto first = data_.first(kPackedChunkBytes);
    fetch(0, first);
    if (lacks_huge_pages(first)) try_collapse(first);
    if (lacks_huge_pages(first)) {
      if (!must_succeed) return false;
      advise(MADV_NORMAL);
    }
  } else {
    advise(MADV_NORMAL);
  }
  fetch_chunks(data_, checksums, num_threads, fetch);
  if (!wants_huge || !lacks_huge_pages(data_)) return true;
  try_collapse(data_);
  return must_succeed || !lacks_huge_pages(data_);
}

void PackedFile::fetch_copy(const PackedSpec& spec, std::span<const uint64_t> checksums,
                            int32_t num_threads) {
  unmap();  // never both in memory
  copy_ = Memory(spec.num_bytes);
  data_ = {copy_.data(), copy_.size()};
  fetch_chunks(data_, checksums, num_threads, [&](size_t at, std::span<const std::byte> chunk) {
    read_exactly(file_.get(), copy_.data() + at, chunk.size(), packed_data_offset(spec) + at);
  });
}

void PackedFile::map(uint64_t data_offset, uint64_t num_bytes) {
  std::byte* at = reserve_aligned(num_bytes);
  mapped_ = data_ = {at, static_cast<size_t>(num_bytes)};
  void* mapped =
      ::mmap(at, num_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file_.get(), static_cast<off_t>(data_offset));
  if (mapped == MAP_FAILED) throw_system("cannot map " + std::to_string(num_bytes) + " bytes", errno);
  advise(MADV_HUGEPAGE);
  // With both, a fault reads the one huge page that it is in. Without, several threads that fault at once mix
  // up the kernel's idea of a sequence, and much of the file comes in small pages.
  advise(MADV_RANDOM);
}

// A hint: refusal costs speed only.
void PackedFile::advise(int advice) noexcept {
  ::madvise(const_cast<std::byte*>(mapped_.data()), mapped_.size(), advice);
}

void PackedFile::unmap() noexcept {
  if (!mapped_.empty()) ::munmap(const_cast<std::byte*>(mapped_.data()), mapped_.size());
  mapped_ = data_ = {};
}

PackedFile::~PackedFile() { unmap(); }

}  // namespace plait
