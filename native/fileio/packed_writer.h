// Writes a PackedFile: under a temporary name first, renamed when every byte is on the disk.
// Knows: locks, temporary files. Must not know: what the data mean.
//
// The temporary name belongs to the file's name, and its lock says who writes: of several processes one
// writes and the others see that. A writer that was killed has lost its lock; the next one takes its file
// over. A file that is locked has a name only if it is still the one in the folder: look after locking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fileio/packed_file.h"

namespace plait {

inline constexpr const char* kPackedTemporarySuffix = ".tmp";

class PackedWriter {
 public:
  // Sets disk space aside. nullptr: somebody else writes this file now. Throws Error (kSystem) when the
  // folder cannot be written to, is full or knows no locks.
  static std::unique_ptr<PackedWriter> try_create(int folder, const std::string& name, PackedSpec spec);

  PackedWriter(const PackedWriter&) = delete;
  PackedWriter& operator=(const PackedWriter&) = delete;
  // Removes the temporary file unless it was published.
  ~PackedWriter();

  // The next bytes of the data. Throws Error (kSystem) when the disk refuses them, kInvalidArgument when they
  // are more than the data has.
  void append(std::span<const std::byte> bytes);
  // Zeros up to a multiple of `alignment`.
  void pad(size_t alignment);
  uint64_t num_appended() const { return num_written_ + buffer_.size(); }

  // Gives the file its name once it is on the disk; blocks for that. All data must have been appended.
  void publish();

 private:
  PackedWriter(Descriptor folder, const std::string& name, PackedSpec spec, Descriptor file);
  void flush();

  Descriptor folder_;
  std::string name_;
  PackedSpec spec_;
  Descriptor file_;  // holds the lock
  uint64_t data_offset_;
  uint64_t num_written_ = 0;
  std::vector<std::byte> buffer_;  // a part of a chunk
  std::vector<uint64_t> checksums_;
  bool is_published_ = false;
};

}  // namespace plait
