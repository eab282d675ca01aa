// A fast 64-bit checksum. Knows: bytes. Finds what disks and memory do, not what somebody does on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace plait {

// Over eight lanes of 64-bit little-endian words, word i in lane i % 8, the end filled up with zero bytes:
//
//   mix(h) = h * 0x9E3779B97F4A7C15, then h ^ (h >> 32)
//   lane   = mix(lane ^ word), from lane = index + 1
//   result = mix(result ^ lane) over the lanes, from the number of bytes
//
// Every step is one-to-one in the lane and in the word: damage within one word is always found, other damage
// with a chance of all but 2^-64. Same result on every machine.
uint64_t checksum64(std::span<const std::byte> bytes);

}  // namespace plait
