// Reads GGUF model files (versions 2 and 3, little-endian). Files are hostile: every count, size, type,
// offset and alignment is checked against the bytes that exist before it is used, and a bad file ends in one
// Error (kInvalidFile, kUnsupported) that says what is wrong, at which byte and for which key or tensor.
// Knows: the container format. Must not know: architectures, kernels, Python.
//
// Bounds: open() touches only the header (at most kMaxGgufHeaderBytes of it) and allocates some 80 bytes for
// each key and tensor. It blocks on the disk for the header only. Immutable afterwards: any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fileio/gguf_tensor.h"
#include "fileio/gguf_value.h"
#include "fileio/mapped_file.h"

namespace plait {

inline constexpr uint64_t kMaxGgufHeaderBytes = uint64_t{48} << 20;
inline constexpr uint64_t kMaxGgufKeys = 65536;
inline constexpr uint64_t kMaxGgufTensors = 65536;
inline constexpr size_t kMaxGgufKeyBytes = 65535;
inline constexpr uint32_t kDefaultGgufAlignment = 32;

class GgufFile {
 public:
  // Maps and checks the file. All views that it gives live as long as the GgufFile (moving it keeps them
  // valid).
  static GgufFile open(const std::string& path);

  // The same checks over bytes that the caller keeps alive.
  static GgufFile parse(std::span<const std::byte> bytes);

  const std::string& path() const { return path_; }  // empty after parse()
  uint64_t size() const { return bytes_.size(); }
  uint32_t version() const { return version_; }
  uint32_t alignment() const { return alignment_; }
  uint64_t data_offset() const { return data_offset_; }  // where tensor data starts

  // Both in file order; names and keys are unique.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<GgufMetadataEntry>& metadata() const { return metadata_; }

  // nullptr when there is none. O(log n).
  const TensorInfo* find_tensor(std::string_view name) const;
  const GgufValue* find_value(std::string_view key) const;

  // tensor.num_bytes bytes, aligned to alignment() (at least 8). `tensor` must be one of tensors().
  const std::byte* tensor_data(const TensorInfo& tensor) const { return bytes_.data() + tensor.offset; }

  // nullopt when the key is absent; Error (kInvalidFile) naming key and type when it is there with another
  // type.
  std::optional<int64_t> get_int(std::string_view key) const;
  std::optional<double> get_float(std::string_view key) const;
  std::optional<bool> get_bool(std::string_view key) const;
  std::optional<std::string_view> get_string(std::string_view key) const;

  // The whole file, and what the file system says of it now; not after parse().
  std::span<const std::byte> bytes() const { return bytes_; }
  FileStamp stamp() const { return file_.stamp(); }

  // Advice about a tensor's pages or a range of the file (see MappedFile); nothing happens after parse().
  void prefetch(const TensorInfo& tensor) const noexcept;
  void release(const TensorInfo& tensor) const noexcept;
  void release(uint64_t offset, uint64_t num_bytes) const noexcept;

 private:
  GgufFile() = default;
  void read_all();
  void read_metadata(ByteReader& reader, uint64_t num_keys);
  void read_tensors(ByteReader& reader, uint64_t num_tensors);
  void find_alignment();

  std::string path_;
  MappedFile file_;
  std::span<const std::byte> bytes_;
  uint32_t version_ = 0;
  uint32_t alignment_ = kDefaultGgufAlignment;
  uint64_t data_offset_ = 0;
  std::vector<GgufMetadataEntry> metadata_;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> keys_by_name_;  // positions in metadata_ and tensors_, sorted by name
  std::vector<uint32_t> tensors_by_name_;
};

}  // namespace plait
