// How many slots a ring of a wanted capacity gets.
#pragma once

#include <bit>
#include <cstddef>
#include <string>

#include "base/error.h"

namespace plait {

inline constexpr size_t kMaxRingCapacity = size_t{1} << 30;

// The next power of two.
inline size_t ring_size(size_t capacity) {
  if (capacity == 0 || capacity > kMaxRingCapacity) {
    throw Error(ErrorCode::kInvalidArgument, "ring capacity " + std::to_string(capacity) + " is outside 1.." +
                                                 std::to_string(kMaxRingCapacity));
  }
  return std::bit_ceil(capacity);
}

}  // namespace plait
