#include "fileio/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace plait {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kStripe = kLanes * sizeof(uint64_t);

constexpr uint64_t mix(uint64_t h) {
  h *= 0x9E3779B97F4A7C15;
  return h ^ (h >> 32);
}

using Lanes = std::array<uint64_t, kLanes>;

inline void add_stripe(Lanes& lanes, const std::byte* at) {
  static_assert(std::endian::native == std::endian::little);
  Lanes words;
  std::memcpy(words.data(), at, kStripe);
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i] ^ words[i]);
}

}  // namespace

uint64_t checksum64(std::span<const std::byte> bytes) {
  Lanes lanes;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = i + 1;
  size_t at = 0;
  for (; at + kStripe <= bytes.size(); at += kStripe) add_stripe(lanes, bytes.data() + at);
  if (at < bytes.size()) {
    std::byte last[kStripe] = {};
    std::memcpy(last, bytes.data() + at, bytes.size() - at);
    add_stripe(lanes, last);
  }
  uint64_t result = bytes.size();
  for (const uint64_t lane : lanes) result = mix(result ^ lane);
  return result;
}

}  // namespace plait
