#include "fileio/gguf_value.h"

#include <algorithm>

#include "fileio/utf8.h"

namespace plait {
namespace {

constexpr uint32_t kNumValueTypes = 13;
constexpr uint64_t kStringHeaderBytes = 8;  // the least that a string takes
constexpr uint64_t kArrayHeaderBytes = 12;  // and an array

// State of one value's check.
struct ValueCheck {
  ByteReader& reader;
  std::string what;  // "metadata key 'x'"
  uint64_t& elements_left;
};

GgufValueType read_type(ValueCheck& check) {
  const uint64_t at = check.reader.offset();
  const auto number = check.reader.read<uint32_t>(check.what);
  if (number >= kNumValueTypes) {
    throw_bad_byte(at, check.what + " has the unknown value type " + std::to_string(number));
  }
  return static_cast<GgufValueType>(number);
}

void check_string(ValueCheck& check) {
  const uint64_t at = check.reader.offset();
  const std::string_view text = check.reader.read_string(check.what);
  if (!is_utf8(text)) throw_bad_byte(at, check.what + " holds a string that is not UTF-8");
}

void check_bools(ValueCheck& check, uint64_t count) {
  const std::byte* begin = check.reader.cursor();
  check.reader.skip(count, check.what);
  const std::byte* end = check.reader.cursor();
  const std::byte* bad = std::find_if(begin, end, [](std::byte b) { return b > std::byte{1}; });
  if (bad != end) {
    throw_bad_byte(
        check.reader.offset() - static_cast<uint64_t>(end - bad),
        check.what + " holds a bool that is " + std::to_string(std::to_integer<int>(*bad)) + ", not 0 or 1");
  }
}

struct ArrayHeader {
  GgufValueType element_type;
  uint64_t count;
};

// Reads type and count and checks that the elements can be there at all.
ArrayHeader read_array_header(ValueCheck& check) {
  const GgufValueType element_type = read_type(check);
  const uint64_t at = check.reader.offset();
  const auto count = check.reader.read<uint64_t>(check.what);
  uint64_t least_bytes = fixed_size(element_type);
  if (element_type == GgufValueType::kString) least_bytes = kStringHeaderBytes;
  if (element_type == GgufValueType::kArray) least_bytes = kArrayHeaderBytes;
  if (count > check.reader.remaining() / least_bytes) {
    throw_bad_byte(at, check.what + " claims an array of " + std::to_string(count) + " elements but only " +
                           std::to_string(check.reader.remaining()) + " bytes are left in " +
                           check.reader.whole());
  }
  if (count > check.elements_left) {
    throw_bad_byte(at, check.what + " brings the arrays of the file above " +
                           std::to_string(kMaxGgufArrayElements) + " elements");
  }
  check.elements_left -= count;
  return {element_type, count};
}

void check_elements(ValueCheck& check, const ArrayHeader& array, int depth) {
  switch (array.element_type) {
    case GgufValueType::kString:
      for (uint64_t i = 0; i < array.count; ++i) check_string(check);
      return;
    case GgufValueType::kArray:
      if (depth >= kMaxGgufArrayDepth) {
        throw_bad_byte(check.reader.offset(), check.what + " nests arrays deeper than " +
                                                  std::to_string(kMaxGgufArrayDepth) + " levels");
      }
      for (uint64_t i = 0; i < array.count; ++i) check_elements(check, read_array_header(check), depth + 1);
      return;
    case GgufValueType::kBool:
      check_bools(check, array.count);
      return;
    default:
      check.reader.skip(array.count * fixed_size(array.element_type), check.what);
      return;
  }
}

}  // namespace

const char* value_type_name(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
      return "uint8";
    case GgufValueType::kInt8:
      return "int8";
    case GgufValueType::kUint16:
      return "uint16";
    case GgufValueType::kInt16:
      return "int16";
    case GgufValueType::kUint32:
      return "uint32";
    case GgufValueType::kInt32:
      return "int32";
    case GgufValueType::kFloat32:
      return "float32";
    case GgufValueType::kBool:
      return "bool";
    case GgufValueType::kString:
      return "string";
    case GgufValueType::kArray:
      return "array";
    case GgufValueType::kUint64:
      return "uint64";
    case GgufValueType::kInt64:
      return "int64";
    case GgufValueType::kFloat64:
      return "float64";
  }
  return "unknown";
}

std::optional<int64_t> GgufValue::as_int() const {
  ByteReader in = reader();
  switch (type) {
    case GgufValueType::kUint8:
      return in.read<uint8_t>("value");
    case GgufValueType::kInt8:
      return in.read<int8_t>("value");
    case GgufValueType::kUint16:
      return in.read<uint16_t>("value");
    case GgufValueType::kInt16:
      return in.read<int16_t>("value");
    case GgufValueType::kUint32:
      return in.read<uint32_t>("value");
    case GgufValueType::kInt32:
      return in.read<int32_t>("value");
    case GgufValueType::kInt64:
      return in.read<int64_t>("value");
    case GgufValueType::kUint64: {
      const auto number = in.read<uint64_t>("value");
      if (number > uint64_t{INT64_MAX}) return std::nullopt;
      return static_cast<int64_t>(number);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::as_float() const {
  ByteReader in = reader();
  if (type == GgufValueType::kFloat32) return in.read<float>("value");
  if (type == GgufValueType::kFloat64) return in.read<double>("value");
  const std::optional<int64_t> number = as_int();
  if (!number) return std::nullopt;
  return static_cast<double>(*number);
}

std::optional<bool> GgufValue::as_bool() const {
  if (type != GgufValueType::kBool) return std::nullopt;
  return reader().read<uint8_t>("value") != 0;
}

std::optional<std::string_view> GgufValue::as_string() const {
  if (type != GgufValueType::kString) return std::nullopt;
  return reader().read_string("value");
}

GgufValue read_gguf_value(ByteReader& reader, std::string_view key, uint64_t& elements_left) {
  ValueCheck check{reader, "metadata key " + quoted(key), elements_left};
  GgufValue value;
  value.type = read_type(check);
  value.offset = reader.offset();
  value.data = reader.cursor();
  const size_t begin = reader.position();
  switch (value.type) {
    case GgufValueType::kArray: {
      const ArrayHeader array = read_array_header(check);
      value.element_type = array.element_type;
      value.count = array.count;
      check_elements(check, array, 1);
      break;
    }
    case GgufValueType::kString:
      check_string(check);
      break;
    case GgufValueType::kBool:
      check_bools(check, 1);
      break;
    default:
      reader.skip(fixed_size(value.type), check.what);
      break;
  }
  value.num_bytes = reader.position() - begin;
  return value;
}

}  // namespace plait
