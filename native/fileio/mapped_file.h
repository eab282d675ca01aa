// A file mapped read-only. Knows: the operating system's calls. Must not know: what the bytes mean.
// Immutable after open(), so any thread may read it. INVARIANT: nobody shortens a model file while it is
// mapped (reading behind the new end would be SIGBUS); plait itself replaces files only by renaming new ones
// over them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace plait {

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

  // Tells the kernel how [offset, offset + length) will be read; a range outside the file is cut to it. Only
  // advice: a kernel that refuses it is not an error.
  void advise(Access access, size_t offset, size_t length) const noexcept;

  // Gives the resident pages that lie wholly in the range back; reading them again takes them from the file.
  void release(size_t offset, size_t length) const noexcept;

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  void unmap() noexcept;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace plait
