// Multiply-add loops that live in registers: the most that a core can do with the instructions of the matrix
// kernels. Knows: instructions. Must not know: kernels, threads, clocks.
//
// Every input is one, so that the lanes count: what a loop returns is added up from them afterwards, and a
// loop that the compiler had shortened would show.
#pragma once

#include <cstdint>

#include "cpu/isa.h"

namespace plait {

enum class MacUnit : uint8_t {
  kF32,   // fused multiply-add of float32
  kInt8,  // codes of 8 bits times bytes, into int32
  kInt6,  // codes of at most 6 bits, whose products int16 lanes can add first: 8 of them when codes have 4
};

// Rounds that one call can count exactly: float32 and int32 lanes overflow later.
inline constexpr int64_t kMaxMacRounds = int64_t{1} << 22;

// Runs `rounds` rounds, 0 <= rounds <= kMaxMacRounds, and returns the multiply-adds done. No allocation.
using MacLoopFn = uint64_t (*)(int64_t rounds);

// The loop of `isa`, which must be supported (cpu/isa.h).
MacLoopFn mac_loop(Isa isa, MacUnit unit);

#if defined(__x86_64__)
namespace avx2 {
uint64_t mac_loop_f32(int64_t rounds);
uint64_t mac_loop_int8(int64_t rounds);
uint64_t mac_loop_int6(int64_t rounds);
}  // namespace avx2
namespace avx512 {
uint64_t mac_loop_f32(int64_t rounds);
uint64_t mac_loop_int8(int64_t rounds);
uint64_t mac_loop_int6(int64_t rounds);
}  // namespace avx512
namespace avx512vnni {
uint64_t mac_loop_int8(int64_t rounds);
}  // namespace avx512vnni
#elif defined(__aarch64__)
namespace neon {
uint64_t mac_loop_f32(int64_t rounds);
uint64_t mac_loop_int8(int64_t rounds);
}  // namespace neon
#endif

}  // namespace plait
