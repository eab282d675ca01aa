// A file mapped read-only. Knows: the operating system's calls. Must not know: what the bytes mean.
// Immutable after open(), so any thread may read it. INVARIANT: nobody shortens a model file while it is
// mapped (reading behind the new end would be SIGBUS); plait itself replaces files only by renaming new ones
// over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "fileio/descriptor.h"

namespace plait {

// What the file system says of a file. The change time cannot be set: a write to the file, or another file in
// its place, gives another stamp. The device is left out: its number means nothing after a reboot or in the
// next container.
struct FileStamp {
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;
};

class MappedFile {
 public:
  enum class Access { kNormal, kSequential, kRandom, kWillNeed };

  // Maps a regular file. Throws Error (kSystem) with the reason when it cannot. An empty file has size() 0.
  // Reads no byte of it; never blocks on a FIFO or device (those are refused).
  static MappedFile open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Both stay the same, and the bytes valid, when the MappedFile is moved.
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Of the mapped file as it is now. Throws Error (kSystem).
  FileStamp stamp() const;

  // Tells the kernel how [offset, offset + length) will be read; a range outside the file is cut to it. Only
  // advice: a kernel that refuses it is not an error.
  void advise(Access access, size_t offset, size_t length) const noexcept;

  // Gives the resident pages that lie wholly in the range back; reading them again takes them from the file.
  void release(size_t offset, size_t length) const noexcept;

 private:
  MappedFile(Descriptor file, const std::byte* data, size_t size)
      : file_(std::move(file)), data_(data), size_(size) {}
  void unmap() noexcept;

  Descriptor file_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace plait
