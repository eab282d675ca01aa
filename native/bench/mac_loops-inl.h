// The loops of mac_loops.h for one vector width. Included by mac_loops_<isa>.cc, once, with PLAIT_ISA (the
// namespace), PLAIT_TARGET (the target features, a string) and, in that namespace, a type Vec with Int,
// Float, kLanes (of 32 bits) and the operations used here.
//
// INVARIANT: an asm statement without instructions stands between any two operations on the same registers;
// otherwise the compiler would compute a product of unchanged values once.

namespace plait::PLAIT_ISA {

#define PLAIT_PIN(value) asm volatile("" : "+v"(value))

uint64_t PLAIT_FN count_lanes(Vec::Int sum) {
  alignas(64) int32_t lanes[Vec::kLanes];
  Vec::store(lanes, sum);
  uint64_t total = 0;
  for (const int32_t lane : lanes) total += static_cast<uint64_t>(lane);
  return total;
}

// Enough chains to fill two units of a latency of four; each takes a register, of 16 with AVX2.
inline constexpr int kChains = 10;
inline constexpr int kIntChains = 8;

PLAIT_FN uint64_t mac_loop_f32(int64_t rounds) {
  Vec::Float one = Vec::one_float();
  Vec::Float sums[kChains];
  for (Vec::Float& sum : sums) sum = Vec::zero_float();
  for (int64_t r = 0; r < rounds; ++r) {
    for (Vec::Float& sum : sums) {
      PLAIT_PIN(one);
      sum = Vec::fma(one, one, sum);
    }
  }
  uint64_t total = 0;
  for (const Vec::Float& sum : sums) total += count_lanes(Vec::to_int(sum));
  return total;
}

PLAIT_FN uint64_t mac_loop_int8(int64_t rounds) {
  Vec::Int codes = Vec::ones_int8();
  const Vec::Int q = Vec::ones_int8();
  const Vec::Int ones = Vec::ones_int16();
  Vec::Int sums[kIntChains];
  for (Vec::Int& sum : sums) sum = Vec::zero();
  for (int64_t r = 0; r < rounds; ++r) {
    for (Vec::Int& sum : sums) {
      PLAIT_PIN(codes);
      sum = Vec::add_int32(sum, Vec::dot_int16(Vec::dot_bytes(codes, q), ones));
    }
  }
  uint64_t total = 0;
  for (const Vec::Int& sum : sums) total += count_lanes(sum);
  return total;
}

// Eight products of pairs are added in int16 before they are widened.
PLAIT_FN uint64_t mac_loop_int6(int64_t rounds) {
  constexpr int kNarrowChains = 4;
  Vec::Int codes = Vec::ones_int8();
  const Vec::Int q = Vec::ones_int8();
  const Vec::Int ones = Vec::ones_int16();
  Vec::Int sums[kNarrowChains];
  for (Vec::Int& sum : sums) sum = Vec::zero();
  for (int64_t r = 0; r < rounds; ++r) {
    Vec::Int narrow[kNarrowChains];
    for (Vec::Int& n : narrow) {
      PLAIT_PIN(codes);
      n = Vec::dot_bytes(codes, q);
    }
    for (int i = 1; i < 8; ++i) {
      for (Vec::Int& n : narrow) {
        PLAIT_PIN(codes);
        n = Vec::add_int16(n, Vec::dot_bytes(codes, q));
      }
    }
    for (int i = 0; i < kNarrowChains; ++i)
      sums[i] = Vec::add_int32(sums[i], Vec::dot_int16(narrow[i], ones));
  }
  uint64_t total = 0;
  for (const Vec::Int& sum : sums) total += count_lanes(sum);
  return total;
}

}  // namespace plait::PLAIT_ISA
