// A cache file: one run of data that was made from something, kept so that it need not be made again.
// Knows: trust, checksums, mapping, writing whole or not at all. Must not know: what the data mean.
//
//   0            PackedHead: magic, version, sizes, checksum of everything before the data
//   64           the key: a text that says what the data were made from
//                checksum of each chunk of kPackedChunkBytes of the data, 8 bytes each
//                zeros up to a multiple of kPackedAlignment
//   data_offset  the data, to the end of the file
//
// Nothing in the file is believed: the reader knows the key and the size of the data that it wants, so that
// a good file has one exact head and length, and every byte of it is under a checksum. Whoever can write to
// the file can forge checksums, so a file of another user, or one that others may write to, is refused.
//
// INVARIANT: a file that has its name is never written again: it is replaced by renaming another one over it,
// or removed. Readers hold a shared lock on it, so that nobody removes what is in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "fileio/descriptor.h"
#include "fileio/huge_pages.h"

namespace plait {

inline constexpr uint32_t kPackedFileVersion = 1;
inline constexpr size_t kPackedChunkBytes = size_t{2} << 20;
// So that the kernel can map the data with huge pages.
inline constexpr size_t kPackedAlignment = kHugePageBytes;

// Which data a file holds.
struct PackedSpec {
  std::string key;
  uint64_t num_bytes = 0;  // of the data; not 0
};

// The bytes before the data. `checksums` holds one for each chunk.
std::vector<std::byte> packed_head(const PackedSpec& spec, std::span<const uint64_t> checksums);
// Their number.
size_t packed_data_offset(const PackedSpec& spec);

// Where the data are to be. Shared: in the page cache, mapped by every process that uses the file; whether in
// huge pages is up to the file system. Private: a copy of this process in huge pages.
enum class PackedMemory {
  kAuto,  // shared when that has huge pages or nothing has, else private
  kShared,
  kPrivate,
};

class PackedFile {
 public:
  // Opens the file `name` of the open folder `folder`, reads all of it with `num_threads` threads and checks
  // every byte. nullptr: there is none. Blocks on the disk.
  // Throws Error: kInvalidFile when the file is damaged, holds other data or is not to be trusted (write a
  // new one), kSystem when the machine lacks something (do without).
  static std::shared_ptr<const PackedFile> open(int folder, const std::string& name, const PackedSpec& spec,
                                                int32_t num_threads,
                                                PackedMemory memory = PackedMemory::kAuto);

  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;
  ~PackedFile();

  // Not to be written to; at least page-aligned.
  std::span<const std::byte> data() const { return data_; }
  // The data are the file's own pages.
  bool is_shared() const { return !mapped_.empty(); }

 private:
  explicit PackedFile(Descriptor file) : file_(std::move(file)) {}
  // The two ways to fill data_. False: the mapping would have small pages, and need not be.
  bool fetch_mapped(const PackedSpec& spec, std::span<const uint64_t> checksums, int32_t num_threads,
                    bool must_succeed);
  void fetch_copy(const PackedSpec& spec, std::span<const uint64_t> checksums, int32_t num_threads);
  void map(uint64_t data_offset, uint64_t num_bytes);
  void advise(int advice) noexcept;
  void unmap() noexcept;

  Descriptor file_;  // holds the lock
  std::span<const std::byte> mapped_;
  Memory copy_;
  std::span<const std::byte> data_;
};

}  // namespace plait
