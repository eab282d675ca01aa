#include "bench/mac_loops.h"

#include <cmath>

namespace plait {

namespace {

constexpr int kChains = 8;  // independent sums, so that none waits for itself

// Makes the compiler forget what it knows of a value.
template <typename T>
void forget(T& value) {
  asm volatile("" : "+m"(value));
}

uint64_t scalar_f32(int64_t rounds) {
  float one = 1.0F;
  forget(one);
  float sums[kChains] = {};
  for (int64_t r = 0; r < rounds; ++r) {
    for (float& sum : sums) sum = std::fma(one, one, sum);
  }
  uint64_t total = 0;
  for (const float sum : sums) total += static_cast<uint64_t>(sum);
  return total;
}

uint64_t scalar_int8(int64_t rounds) {
  int8_t codes[kChains];
  int8_t q[kChains];
  for (int i = 0; i < kChains; ++i) codes[i] = q[i] = 1;
  int32_t sums[kChains] = {};
  for (int64_t r = 0; r < rounds; ++r) {
    forget(codes);
    for (int i = 0; i < kChains; ++i) sums[i] += int32_t{codes[i]} * q[i];
  }
  uint64_t total = 0;
  for (const int32_t sum : sums) total += static_cast<uint64_t>(sum);
  return total;
}

MacLoopFn pick(MacUnit unit, MacLoopFn f32, MacLoopFn int8, MacLoopFn int6) {
  switch (unit) {
    case MacUnit::kF32:
      return f32;
    case MacUnit::kInt8:
      return int8;
    default:
      return int6;
  }
}

}  // namespace

MacLoopFn mac_loop(Isa isa, MacUnit unit) {
  if (isa == Isa::kScalar) return pick(unit, scalar_f32, scalar_int8, scalar_int8);
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kAvx512Vnni:
      return pick(unit, avx512::mac_loop_f32, avx512vnni::mac_loop_int8, avx512vnni::mac_loop_int8);
    case Isa::kAvx512:
      return pick(unit, avx512::mac_loop_f32, avx512::mac_loop_int8, avx512::mac_loop_int6);
    default:
      return pick(unit, avx2::mac_loop_f32, avx2::mac_loop_int8, avx2::mac_loop_int6);
  }
#elif defined(__aarch64__)
  return pick(unit, neon::mac_loop_f32, neon::mac_loop_int8, neon::mac_loop_int8);
#else
  return pick(unit, scalar_f32, scalar_int8, scalar_int8);
#endif
}

}  // namespace plait
