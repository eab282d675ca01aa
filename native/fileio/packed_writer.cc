#include "fileio/packed_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "fileio/checksum.h"

namespace plait {
namespace {

constexpr int kCreateTries = 100;

void write_exactly(int file, std::span<const std::byte> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_system("cannot write", errno);
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
}

bool is_in_folder(int folder, const std::string& name, const struct stat& status) {
  struct stat found = {};
  return ::fstatat(folder, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 && found.st_ino == status.st_ino &&
         found.st_dev == status.st_dev;
}

// The locked temporary file; closed: somebody else has the lock.
Descriptor open_locked(int folder, const std::string& name) {
  for (int i = 0; i < kCreateTries; ++i) {
    Descriptor file(
        ::openat(folder, name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!file.is_open()) throw_system("cannot create", errno);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return {};
      if (errno == EINTR) continue;
      throw_system("cannot lock", errno);
    }
    struct stat status = {};
    if (::fstat(file.get(), &status) != 0) throw_system("cannot stat", errno);
    // Published or removed between opening and locking: it is another file now.
    if (!is_in_folder(folder, name, status)) continue;
    if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::kSystem, "cannot write: it is not a regular file");
    if (status.st_uid != ::geteuid()) {
      throw Error(ErrorCode::kSystem, "cannot write: it belongs to user " + std::to_string(status.st_uid));
    }
    return file;
  }
  throw Error(ErrorCode::kSystem, "cannot create: it is replaced again and again");
}

}  // namespace

std::unique_ptr<PackedWriter> PackedWriter::try_create(int folder, const std::string& name, PackedSpec spec) {
  Descriptor own_folder(::fcntl(folder, F_DUPFD_CLOEXEC, 0));
  if (!own_folder.is_open()) throw_system("cannot use the folder", errno);
  Descriptor file = open_locked(folder, name + kPackedTemporarySuffix);
  if (!file.is_open()) return nullptr;
  std::unique_ptr<PackedWriter> writer(
      new PackedWriter(std::move(own_folder), name, std::move(spec), std::move(file)));
  const int fd = writer->file_.get();
  const auto size = static_cast<off_t>(writer->data_offset_ + writer->spec_.num_bytes);
  if (::ftruncate(fd, 0) != 0 || ::fchmod(fd, 0600) != 0) throw_system("cannot write", errno);
  // A full disk is to be known before the work. Not every file system can tell.
  if (::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, size) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
      errno != EINTR) {
    throw_system("cannot set " + std::to_string(size) + " bytes aside", errno);
  }
  return writer;
}

PackedWriter::PackedWriter(Descriptor folder, const std::string& name, PackedSpec spec, Descriptor file)
    : folder_(std::move(folder)),
      name_(name),
      spec_(std::move(spec)),
      file_(std::move(file)),
      data_offset_(packed_data_offset(spec_)) {
  buffer_.reserve(kPackedChunkBytes);
}

PackedWriter::~PackedWriter() {
  // The lock is still held: nobody else has begun to use the file.
  if (!is_published_) ::unlinkat(folder_.get(), (name_ + kPackedTemporarySuffix).c_str(), 0);
}

void PackedWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > spec_.num_bytes - num_appended()) {
    throw Error(ErrorCode::kInvalidArgument, "more data than the file is to hold");
  }
  while (!bytes.empty()) {
    const size_t num = std::min(bytes.size(), kPackedChunkBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(num));
    bytes = bytes.subspan(num);
    if (buffer_.size() == kPackedChunkBytes) flush();
  }
}

void PackedWriter::pad(size_t alignment) {
  const std::vector<std::byte> zeros((alignment - num_appended() % alignment) % alignment);
  append(zeros);
}

void PackedWriter::flush() {
  const uint64_t offset = data_offset_ + num_written_;
  write_exactly(file_.get(), buffer_, offset);
  // The disk begins now, so that publish() has little left to wait for.
  ::sync_file_range(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(buffer_.size()),
                    SYNC_FILE_RANGE_WRITE);
  checksums_.push_back(checksum64(buffer_));
  num_written_ += buffer_.size();
  buffer_.clear();
}

void PackedWriter::publish() {
  if (!buffer_.empty()) flush();
  if (num_written_ != spec_.num_bytes) {
    throw Error(ErrorCode::kInvalidArgument, "the file is to hold more data than it got");
  }
  write_exactly(file_.get(), packed_head(spec_, checksums_), 0);
  if (::fsync(file_.get()) != 0) throw_system("cannot write", errno);
  if (::renameat(folder_.get(), (name_ + kPackedTemporarySuffix).c_str(), folder_.get(), name_.c_str()) !=
      0) {
    throw_system("cannot rename", errno);
  }
  is_published_ = true;
  ::fsync(folder_.get());
  ::flock(file_.get(), LOCK_UN);  // readers want it
}

}  // namespace plait
