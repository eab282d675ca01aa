// A cursor over little-endian bytes that cannot leave them. Knows: bounds. Must not know: formats.
// INVARIANT: position() <= size(), and every read first compares with what is left, so no sum can overflow.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace plait {

static_assert(std::endian::native == std::endian::little, "model files are read in place as little-endian");

// Throws Error(kInvalidFile) "byte <offset>: <what>".
[[noreturn]] inline void throw_bad_byte(uint64_t offset, const std::string& what) {
  throw Error(ErrorCode::kInvalidFile, "byte " + std::to_string(offset) + ": " + what);
}

class ByteReader {
 public:
  // For messages: `base` is the file offset of bytes[0], `whole` names what the bytes are.
  explicit ByteReader(std::span<const std::byte> bytes, uint64_t base = 0, const char* whole = "the file")
      : bytes_(bytes), base_(base), whole_(whole) {}

  uint64_t offset() const { return base_ + position_; }  // in the file
  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }
  const char* whole() const { return whole_; }
  const std::byte* cursor() const { return bytes_.data() + position_; }

  // A fixed-size number. `what` names it in the error: "byte 24: the file ends inside <what>".
  template <typename T>
  T read(std::string_view what) {
    static_assert(std::is_arithmetic_v<T>);
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, cursor(), sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  // A uint64 length and that many bytes. The view lives as long as the bytes.
  std::string_view read_string(std::string_view what) {
    const uint64_t at = offset();
    const uint64_t length = read<uint64_t>(what);
    if (length > remaining()) {
      throw_bad_byte(at, std::string(what) + " claims " + std::to_string(length) + " bytes but only " +
                             std::to_string(remaining()) + " are left in " + whole_);
    }
    const char* begin = reinterpret_cast<const char*>(cursor());
    position_ += static_cast<size_t>(length);
    return {begin, static_cast<size_t>(length)};
  }

  void skip(uint64_t num_bytes, std::string_view what) {
    need(num_bytes, what);
    position_ += static_cast<size_t>(num_bytes);
  }

 private:
  void need(uint64_t num_bytes, std::string_view what) const {
    if (num_bytes > remaining()) {
      throw_bad_byte(offset(), std::string(whole_) + " ends inside " + std::string(what));
    }
  }

  std::span<const std::byte> bytes_;
  uint64_t base_;
  const char* whole_;
  size_t position_ = 0;
};

}  // namespace plait
