// Metadata values of a GGUF file, as checked views of the file's bytes: nothing is copied, so a file cannot
// make the reader allocate. Knows: the format's value types. Must not know: tensors, what a key means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fileio/byte_reader.h"

namespace plait {

enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Bytes of a value of fixed size; 0 for strings, arrays and unknown types.
constexpr size_t fixed_size(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      break;
  }
  return 0;
}

const char* value_type_name(GgufValueType type);

// One checked value. `reader()` starts at the value itself (an array's type and count come first).
struct GgufValue {
  GgufValueType type = GgufValueType::kUint8;
  GgufValueType element_type = GgufValueType::kUint8;  // arrays only
  uint64_t count = 1;                                  // elements of an array, else 1
  uint64_t offset = 0;                                 // where the value starts in the file
  const std::byte* data = nullptr;                     // valid while the file is
  uint64_t num_bytes = 0;

  ByteReader reader() const { return ByteReader({data, num_bytes}, offset); }

  // The value if it has that kind (any width and signedness of integer that fits), else nullopt.
  std::optional<int64_t> as_int() const;
  std::optional<double> as_float() const;  // float32, float64 or any integer
  std::optional<bool> as_bool() const;
  std::optional<std::string_view> as_string() const;
};

struct GgufMetadataEntry {
  std::string_view key;
  GgufValue value;
};

// Bounds of what is accepted; far above every real model, low enough that reading stays quick and small.
inline constexpr int kMaxGgufArrayDepth = 4;
inline constexpr uint64_t kMaxGgufArrayElements = uint64_t{4} << 20;  // of all arrays of a file together

// Checks the value of `key` whose type comes next and moves behind it. `elements_left` is the file's
// remaining element budget. Throws Error that names key and byte.
GgufValue read_gguf_value(ByteReader& reader, std::string_view key, uint64_t& elements_left);

}  // namespace plait
