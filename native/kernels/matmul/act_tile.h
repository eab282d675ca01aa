// One tile of quantised activations as the kernels walk it (acts.h draws the record), and the choice of
// tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/quantize/acts.h"

namespace plait {

// Pointers into the record of one block; token t of the tile adds t * kBlock to q and t * 4 to the others.
struct ActRecord {
  const std::byte* q;
  const std::byte* scale;
  const std::byte* sum;
  const std::byte* half_sum;

  ActRecord operator+(size_t num_bytes) const {
    return {q + num_bytes, scale + num_bytes, sum + num_bytes, half_sum + num_bytes};
  }
};

struct ActTile {
  const std::byte* first = nullptr;  // record of block 0
  int32_t stored = 0;                // tokens that the tile holds
  int32_t wanted = 0;                // the first so many of them are computed

  ActRecord record(int32_t block) const {
    const auto r = static_cast<size_t>(stored);
    const std::byte* q = first + static_cast<size_t>(block) * r * kActBytes;
    return {q, q + r * kBlock, q + r * (kBlock + 4), q + r * (kBlock + 8)};
  }
};

// The tile that starts at token t (a multiple of kTileTokens), of which tokens below t1 are wanted.
inline ActTile act_tile(const Acts& acts, int32_t t, int32_t t1) {
  const int32_t tile = t / kTileTokens;
  const int32_t stored = tile_tokens(acts.num_tokens, tile);
  return {acts.q8 + tile_offset(tile, acts.cols), stored, t1 - t < stored ? t1 - t : stored};
}

}  // namespace plait
