#include "fileio/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "fileio/descriptor.h"

namespace plait {
namespace {

size_t page_size() {
  static const size_t size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

MappedFile MappedFile::open(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kSystem, "cannot open: the path contains a zero byte");
  }
  // O_NONBLOCK: opening a FIFO that nobody writes must not hang.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) throw_system("cannot open", errno);
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) throw_system("cannot stat", errno);
  if (S_ISDIR(status.st_mode)) throw Error(ErrorCode::kSystem, "cannot open: it is a directory");
  if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::kSystem, "cannot open: it is not a regular file");
  if (status.st_size == 0) return MappedFile(std::move(fd), nullptr, 0);
  if (static_cast<uint64_t>(status.st_size) > SIZE_MAX) {
    throw Error(ErrorCode::kSystem, "cannot map: larger than the address space");
  }
  const size_t size = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) throw_system("cannot map " + std::to_string(size) + " bytes", errno);
  return MappedFile(std::move(fd), static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    file_ = std::move(other.file_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() noexcept {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

FileStamp MappedFile::stamp() const {
  struct stat status = {};
  if (::fstat(file_.get(), &status) != 0) throw_system("cannot stat", errno);
  const auto ns = [](const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; };
  return {static_cast<uint64_t>(status.st_ino), static_cast<uint64_t>(status.st_size), ns(status.st_mtim),
          ns(status.st_ctim)};
}

void MappedFile::advise(Access access, size_t offset, size_t length) const noexcept {
  if (offset >= size_) return;
  const size_t begin = offset / page_size() * page_size();
  const size_t end = offset + std::min(length, size_ - offset);
  int advice = MADV_NORMAL;
  switch (access) {
    case Access::kNormal:
      advice = MADV_NORMAL;
      break;
    case Access::kSequential:
      advice = MADV_SEQUENTIAL;
      break;
    case Access::kRandom:
      advice = MADV_RANDOM;
      break;
    case Access::kWillNeed:
      advice = MADV_WILLNEED;
      break;
  }
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, advice);
}

void MappedFile::release(size_t offset, size_t length) const noexcept {
  if (offset >= size_) return;
  const size_t end = offset + std::min(length, size_ - offset);
  const size_t first_page = offset / page_size() + (offset % page_size() != 0 ? 1 : 0);
  // The file's last page belongs to the range when the range reaches the end.
  const size_t end_page = end == size_ ? (end + page_size() - 1) / page_size() : end / page_size();
  if (first_page >= end_page) return;
  ::madvise(const_cast<std::byte*>(data_) + first_page * page_size(), (end_page - first_page) * page_size(),
            MADV_DONTNEED);
}

}  // namespace plait
