#if defined(__aarch64__)
#include <arm_neon.h>

#include "bench/mac_loops.h"

namespace plait::neon {

namespace {

constexpr int kChains = 12;

template <typename V>
void pin(V& value) {
  asm volatile("" : "+w"(value));
}

}  // namespace

uint64_t mac_loop_f32(int64_t rounds) {
  float32x4_t one = vdupq_n_f32(1.0F);
  float32x4_t sums[kChains];
  for (float32x4_t& sum : sums) sum = vdupq_n_f32(0.0F);
  for (int64_t r = 0; r < rounds; ++r) {
    for (float32x4_t& sum : sums) {
      pin(one);
      sum = vfmaq_f32(sum, one, one);
    }
  }
  uint64_t total = 0;
  for (const float32x4_t& sum : sums) total += vaddlvq_u32(vcvtq_u32_f32(sum));
  return total;
}

__attribute__((target("arch=armv8.2-a+dotprod"))) uint64_t mac_loop_int8(int64_t rounds) {
  int8x16_t codes = vdupq_n_s8(1);
  const int8x16_t q = vdupq_n_s8(1);
  int32x4_t sums[kChains];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  for (int64_t r = 0; r < rounds; ++r) {
    for (int32x4_t& sum : sums) {
      asm volatile("" : "+w"(codes));
      sum = vdotq_s32(sum, codes, q);
    }
  }
  uint64_t total = 0;
  for (const int32x4_t& sum : sums) total += static_cast<uint64_t>(vaddlvq_s32(sum));
  return total;
}

}  // namespace plait::neon
#endif
