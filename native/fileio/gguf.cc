#include "fileio/gguf.h"

#include <algorithm>
#include <numeric>

#include "fileio/utf8.h"

namespace plait {
namespace {

constexpr uint32_t kMagic = 0x46554747;             // "GGUF"
constexpr uint64_t kLeastKeyBytes = 8 + 1 + 4 + 1;  // length, name, type, value
constexpr uint64_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint32_t kLeastAlignment = 8;
constexpr std::string_view kAlignmentKey = "general.alignment";

constexpr uint32_t swapped(uint32_t v) { return v >> 24 | (v >> 8 & 0xff00) | (v << 8 & 0xff0000) | v << 24; }

// A count from the file, refused when it cannot be true.
uint64_t read_count(ByteReader& reader, const char* what, uint64_t least_bytes, uint64_t limit) {
  const uint64_t at = reader.offset();
  const auto count = reader.read<uint64_t>(std::string("the number of ") + what);
  if (count > reader.remaining() / least_bytes) {
    throw_bad_byte(at, "the file claims " + std::to_string(count) + " " + what + " but only " +
                           std::to_string(reader.remaining()) + " bytes are left in " + reader.whole());
  }
  if (count > limit) {
    throw_bad_byte(at, "the file claims " + std::to_string(count) + " " + what + "; plait reads up to " +
                           std::to_string(limit));
  }
  return count;
}

uint32_t read_version(ByteReader& reader) {
  if (reader.remaining() == 0) throw Error(ErrorCode::kInvalidFile, "the file is empty");
  const auto magic = reader.read<uint32_t>("the magic number");
  if (magic != kMagic) {
    const char bytes[4] = {static_cast<char>(magic), static_cast<char>(magic >> 8),
                           static_cast<char>(magic >> 16), static_cast<char>(magic >> 24)};
    throw_bad_byte(0, "not a GGUF file: it starts with " + quoted({bytes, 4}) + ", not 'GGUF'");
  }
  const auto version = reader.read<uint32_t>("the version");
  if (version == 2 || version == 3) return version;
  std::string what = "byte 4: GGUF version " + std::to_string(version) + " is not supported; 2 and 3 are";
  if (swapped(version) >= 1 && swapped(version) <= 3)
    what = "byte 4: big-endian GGUF files are not supported";
  if (version == 0) throw Error(ErrorCode::kInvalidFile, "byte 4: GGUF version 0 does not exist");
  throw Error(ErrorCode::kUnsupported, what);
}

std::string_view read_key(ByteReader& reader) {
  const uint64_t at = reader.offset();
  const std::string_view key = reader.read_string("a metadata key");
  if (key.empty()) throw_bad_byte(at, "a metadata key is empty");
  if (key.size() > kMaxGgufKeyBytes) {
    throw_bad_byte(at, "the metadata key " + quoted(key) + " has " + std::to_string(key.size()) +
                           " bytes; the format allows " + std::to_string(kMaxGgufKeyBytes));
  }
  if (!is_utf8(key)) throw_bad_byte(at, "the metadata key " + quoted(key) + " is not UTF-8");
  if (has_control_bytes(key)) {
    throw_bad_byte(at, "the metadata key " + quoted(key) + " contains control characters");
  }
  return key;
}

// Positions of `names` in sorted order; throws when one occurs twice. Sorting rather than hashing: no choice
// of names makes it slow.
std::vector<uint32_t> sort_unique(const std::vector<std::string_view>& names, const char* what) {
  std::vector<uint32_t> order(names.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return names[a] < names[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (names[order[i - 1]] == names[order[i]]) {
      throw Error(ErrorCode::kInvalidFile,
                  std::string(what) + " " + quoted(names[order[i]]) + " occurs twice");
    }
  }
  return order;
}

template <typename Item, typename Name>
const Item* find_sorted(const std::vector<Item>& items, const std::vector<uint32_t>& order,
                        std::string_view name, Name name_of) {
  const auto it = std::lower_bound(order.begin(), order.end(), name,
                                   [&](uint32_t i, std::string_view n) { return name_of(items[i]) < n; });
  if (it == order.end() || name_of(items[*it]) != name) return nullptr;
  return &items[*it];
}

// The value under `key` converted by `convert`, or the error that it has another type.
template <typename T>
std::optional<T> get_as(const GgufFile& file, std::string_view key,
                        std::optional<T> (GgufValue::*convert)() const, const char* wanted) {
  const GgufValue* value = file.find_value(key);
  if (value == nullptr) return std::nullopt;
  std::optional<T> result = (value->*convert)();
  if (!result) {
    throw_bad_byte(value->offset, "metadata key " + quoted(key) + " is of type " +
                                      value_type_name(value->type) + ", not " + wanted);
  }
  return result;
}

}  // namespace

GgufFile GgufFile::open(const std::string& path) {
  GgufFile file;
  file.path_ = path;
  file.file_ = MappedFile::open(path);
  file.bytes_ = file.file_.bytes();
  file.read_all();
  return file;
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes) {
  GgufFile file;
  file.bytes_ = bytes;
  file.read_all();
  return file;
}

void GgufFile::read_all() {
  const uint64_t header_limit = std::min<uint64_t>(bytes_.size(), kMaxGgufHeaderBytes);
  const bool is_cut = bytes_.size() > kMaxGgufHeaderBytes;
  ByteReader reader(bytes_.first(static_cast<size_t>(header_limit)), 0,
                    is_cut ? "the 48 MiB that a header may take" : "the file");
  version_ = read_version(reader);
  const uint64_t num_tensors = read_count(reader, "tensors", kLeastTensorBytes, kMaxGgufTensors);
  const uint64_t num_keys = read_count(reader, "metadata keys", kLeastKeyBytes, kMaxGgufKeys);
  read_metadata(reader, num_keys);
  find_alignment();
  read_tensors(reader, num_tensors);
}

void GgufFile::read_metadata(ByteReader& reader, uint64_t num_keys) {
  // Grown as keys really occur, not by the count that the file claims.
  uint64_t elements_left = kMaxGgufArrayElements;
  std::vector<std::string_view> keys;
  for (uint64_t i = 0; i < num_keys; ++i) {
    const std::string_view key = read_key(reader);
    metadata_.push_back({key, read_gguf_value(reader, key, elements_left)});
    keys.push_back(key);
  }
  keys_by_name_ = sort_unique(keys, "metadata key");
}

void GgufFile::read_tensors(ByteReader& reader, uint64_t num_tensors) {
  std::vector<std::string_view> names;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    tensors_.push_back(read_gguf_tensor_info(reader));
    names.push_back(tensors_.back().name);
  }
  tensors_by_name_ = sort_unique(names, "tensor");
  // Both terms are small: the header ends below kMaxGgufHeaderBytes and the alignment is a uint32.
  const uint64_t mask = uint64_t{alignment_} - 1;
  data_offset_ = (reader.offset() + mask) & ~mask;
  place_gguf_tensors(tensors_, data_offset_, alignment_, bytes_.size());
}

void GgufFile::find_alignment() {
  const GgufValue* value = find_value(kAlignmentKey);
  if (value == nullptr) return;
  if (value->type != GgufValueType::kUint32) {
    throw_bad_byte(value->offset, "metadata key 'general.alignment' is of type " +
                                      std::string(value_type_name(value->type)) + ", not uint32");
  }
  alignment_ = value->reader().read<uint32_t>("value");
  if (alignment_ < kLeastAlignment || (alignment_ & (alignment_ - 1)) != 0) {
    throw_bad_byte(value->offset, "metadata key 'general.alignment' is " + std::to_string(alignment_) +
                                      ", not a power of two from 8 up");
  }
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  return find_sorted(tensors_, tensors_by_name_, name, [](const TensorInfo& t) { return t.name; });
}

const GgufValue* GgufFile::find_value(std::string_view key) const {
  const auto* entry =
      find_sorted(metadata_, keys_by_name_, key, [](const GgufMetadataEntry& e) { return e.key; });
  return entry == nullptr ? nullptr : &entry->value;
}

std::optional<int64_t> GgufFile::get_int(std::string_view key) const {
  return get_as(*this, key, &GgufValue::as_int, "an integer");
}
std::optional<double> GgufFile::get_float(std::string_view key) const {
  return get_as(*this, key, &GgufValue::as_float, "a number");
}
std::optional<bool> GgufFile::get_bool(std::string_view key) const {
  return get_as(*this, key, &GgufValue::as_bool, "a bool");
}
std::optional<std::string_view> GgufFile::get_string(std::string_view key) const {
  return get_as(*this, key, &GgufValue::as_string, "a string");
}

void GgufFile::prefetch(const TensorInfo& tensor) const noexcept {
  file_.advise(MappedFile::Access::kWillNeed, tensor.offset, tensor.num_bytes);
}
void GgufFile::release(const TensorInfo& tensor) const noexcept {
  file_.release(tensor.offset, tensor.num_bytes);
}

void GgufFile::release(uint64_t offset, uint64_t num_bytes) const noexcept {
  file_.release(offset, num_bytes);
}

}  // namespace plait
