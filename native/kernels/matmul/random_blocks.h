// Pseudo-random weights in file layout and activations, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/ggml_type.h"
#include "kernels/quantize/acts.h"

namespace plait {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-23F - 1.0F; }  // in [-1, 1)
  int32_t below(int32_t limit) { return static_cast<int32_t>(next() % static_cast<uint64_t>(limit)); }

 private:
  uint64_t state_;
};

// Offsets of the f16 fields of a block, -1 where there is none.
struct HalfOffsets {
  int32_t d;
  int32_t min_d;
};
inline HalfOffsets half_offsets(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return {0, 2};
    case GgmlType::kQ2_K:
      return {80, 82};
    case GgmlType::kQ3_K:
      return {108, -1};
    case GgmlType::kQ6_K:
      return {208, -1};
    case GgmlType::kF32:
      return {2, -1};
    default:
      return {0, -1};
  }
}

// Random bytes with every scale (or float element) moved to a moderate exponent.
inline std::vector<std::byte> random_blocks(GgmlType type, int64_t num_blocks, uint64_t seed) {
  const BlockShape shape = block_shape(type);
  std::vector<std::byte> data(static_cast<size_t>(num_blocks * shape.bytes));
  SplitMix64 random(seed);
  for (std::byte& b : data) b = static_cast<std::byte>(random.next() >> 56);
  const HalfOffsets halves = half_offsets(type);
  const bool is_wide = type == GgmlType::kF32 || type == GgmlType::kBF16;  // 8 bits of exponent
  for (int64_t block = 0; block < num_blocks; ++block) {
    for (const int32_t offset : {halves.d, halves.min_d}) {
      if (offset < 0) continue;
      std::byte& high = data[static_cast<size_t>(block * shape.bytes + offset + 1)];
      high =
          is_wide ? (high & std::byte{0x81}) | std::byte{0x3e} : (high & std::byte{0x8f}) | std::byte{0x20};
    }
  }
  return data;
}

// 64-byte aligned room.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : room_(size + 64) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(room_.data());
    return room_.data() + ((64 - address % 64) % 64);
  }

 private:
  std::vector<std::byte> room_;
};

}  // namespace plait
