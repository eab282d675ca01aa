// The order in which a product walks its weights and tokens, the same for every ISA: panels of row groups
// that stay in the second-level cache, and within one all tiles of tokens. Plain code of no ISA; what it
// calls multiplies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/matmul/act_tile.h"
#include "kernels/matmul/packed_layout.h"

namespace plait {

// Where groups begin: their records, and the lower bits of the kind that keeps them apart.
struct Groups {
  const std::byte* records;
  const std::byte* low;

  Groups at(int32_t group, PackedKind kind, int64_t cols) const {
    const auto g = static_cast<size_t>(group);
    return {records + g * group_bytes(kind, cols),
            low == nullptr ? low : low + g * low_group_bytes(kind, cols)};
  }
};

// fn(groups, num_groups, row): weights and number of the groups of a panel, and its first row.
template <typename Fn>
void walk_panels(const PackedMatrix& w, int32_t row0, int32_t row1, Fn&& fn) {
  constexpr size_t kPanelBytes = size_t{256} << 10;
  const size_t step = group_bytes(w.kind, w.cols);
  // Pairs of groups stay together.
  const auto fitting = static_cast<int32_t>(kPanelBytes / step);
  const int32_t panel = fitting < 8 ? 8 : fitting & ~1;
  const int32_t group1 = row1 / kRowGroup;
  for (int32_t group = row0 / kRowGroup; group < group1; group += panel) {
    fn(Groups{w.data, w.low}.at(group, w.kind, w.cols), group1 - group < panel ? group1 - group : panel,
       group * kRowGroup);
  }
}

// Multiplies a range of groups with a tile, or with two that follow each other.
using TileFn = void (*)(const Groups& groups, int32_t num_groups, int32_t cols, const ActTile& tile,
                        float* out, int64_t out_stride);

struct TileFns {
  TileFn by_tokens[kTileTokens];  // a tile of n tokens: n - 1
  TileFn two_tiles;               // two full tiles at once; null where that is no faster
};

// Quantised kinds.
inline void walk_tiles(const TileFns& fns, const PackedMatrix& w, const Acts& acts, int32_t row0,
                       int32_t row1, int32_t t0, int32_t t1, float* out, int64_t out_stride) {
  constexpr int32_t kTwo = 2 * kTileTokens;
  walk_panels(w, row0, row1, [&](const Groups& groups, int32_t num_groups, int32_t row) {
    for (int32_t t = t0; t < t1;) {
      const ActTile tile = act_tile(acts, t, t1);
      const bool is_two = fns.two_tiles != nullptr && t1 - t >= kTwo;
      const TileFn multiply = is_two ? fns.two_tiles : fns.by_tokens[tile.wanted - 1];
      multiply(groups, num_groups, w.cols, tile, out + (t - t0) * out_stride + row - row0, out_stride);
      t += is_two ? kTwo : kTileTokens;
    }
  });
}

// Float kinds: multiply(n, groups, num_groups, x, out) multiplies n = 4, 2 or 1 tokens, n an
// integral_constant.
template <typename Multiply>
void walk_floats(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
                 float* out, int64_t out_stride, Multiply&& multiply) {
  walk_panels(w, row0, row1, [&](const Groups& groups, int32_t num_groups, int32_t row) {
    int32_t t = t0;
    const auto take = [&](auto num_tokens) {
      multiply(num_tokens, groups.records, num_groups, acts.f32 + static_cast<int64_t>(t) * acts.cols,
               out + (t - t0) * out_stride + row - row0);
      t += num_tokens;
    };
    while (t1 - t >= 4) take(std::integral_constant<int, 4>{});
    if (t1 - t >= 2) take(std::integral_constant<int, 2>{});
    if (t1 - t >= 1) take(std::integral_constant<int, 1>{});
  });
}

}  // namespace plait
