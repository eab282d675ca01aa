// Activations as the matrix kernels read them: 8-bit blocks of 32 along the columns, in tiles of up to
// kTileTokens tokens, and/or plain float32 rows for float weights.
// Knows: the layout. Must not know: who runs it. A plain view: it owns nothing; tasks that write disjoint
// (token, block) pairs may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plait {

inline constexpr int32_t kBlock = 32;      // elements along K that share one activation scale
inline constexpr int32_t kTileTokens = 8;  // tokens that are stored together

// Q8 layout. Tokens are cut in tiles of kTileTokens; the last tile holds the r = 1..8 that remain. A tile is
// a run of cols/32 records, one per block, each of r * kActBytes bytes:
//   int8 q[r][32]; float scale[r]; float sum[r]; int16 half_sum[r][2];
//   x ~ scale * q;  half_sum = sums of q[0..16) and q[16..32);  sum = scale * (sum of the 32 q)
// so within a tile every address is a constant offset from the record, for a given r.
// Tile i starts at tile_offset(i, cols).
struct Acts {
  std::byte* q8 = nullptr;  // acts_q8_bytes(num_tokens, cols), 64-byte aligned; null when not wanted
  float* f32 = nullptr;     // [num_tokens][cols]; null when not wanted
  int32_t num_tokens = 0;
  int32_t cols = 0;  // a multiple of kBlock
};

inline constexpr int32_t kActBytes = kBlock + 12;  // per token and block: 32 q, scale, sum, 2 half sums

constexpr size_t acts_q8_bytes(int64_t num_tokens, int64_t cols) {
  return static_cast<size_t>(num_tokens * (cols / kBlock) * kActBytes);
}
constexpr int32_t tile_tokens(int32_t num_tokens, int32_t tile) {
  const int32_t left = num_tokens - tile * kTileTokens;
  return left < kTileTokens ? left : kTileTokens;
}
constexpr size_t tile_offset(int32_t tile, int32_t cols) {
  return static_cast<size_t>(tile) * kTileTokens * kActBytes * static_cast<size_t>(cols / kBlock);
}

// Writes token `t`, columns [col0, col1) (multiples of kBlock) of `acts` from x[0 .. col1-col0): the q8 part
// when acts.q8 is set and the f32 part when acts.f32 is set.
// Per block: scale = max|x| / 127, q = x * (1 / scale) rounded half to even, so |q| <= 127. Scale and q are 0
// when max|x| < kMinActMax; scale and sum are NaN and q is 0 when an x is infinite or NaN, so that it shows
// in every output instead of being clipped. Every ISA writes the same bits.
inline constexpr float kMinActMax = 1e-30F;
using QuantizeFn = void (*)(const float* x, int32_t t, int32_t col0, int32_t col1, const Acts& acts);

}  // namespace plait
