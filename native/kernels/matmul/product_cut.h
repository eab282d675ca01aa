// How a product of [rows] x [tokens] is cut into chunks that may run at the same time. Knows: tiles, caches.
// Must not know: who runs the chunks. A cut changes no bit of any result (matmul.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/quantize/acts.h"

namespace plait {

inline constexpr int32_t kTokensPerCut = 64;  // their activations stay in L2 while weights stream through L1
inline constexpr int32_t kRowsPerCut = 64;
inline constexpr int32_t kRowUnit = 32;  // of a product that nothing else cuts
// A delayed member of the team costs little, and its share of the weights still streams in one run.
inline constexpr int32_t kCutsPerMember = 4;
inline constexpr int32_t kMaxRowsPerCut = 2048;  // of a cut of few tokens

struct ProductArea {
  int32_t row0, row1, t0, t1;
};

// Rows [i * rows_per_cut, ...) x tokens [j * tokens_per_cut, ...).
struct ProductCut {
  int32_t rows, tokens;
  int32_t rows_per_cut, tokens_per_cut;
  int32_t num_row_cuts, num_token_cuts;

  int32_t num_chunks() const { return num_row_cuts * num_token_cuts; }

  // Tokens vary fastest: members that run side by side share a weight panel.
  ProductArea area(int32_t chunk) const {
    const int32_t row0 = chunk / num_token_cuts * rows_per_cut;
    const int32_t t0 = chunk % num_token_cuts * tokens_per_cut;
    return {row0, std::min(rows, row0 + rows_per_cut), t0, std::min(tokens, t0 + tokens_per_cut)};
  }
};

// For a team of `num_members`; rows are cut at multiples of `row_unit`.
inline ProductCut cut_product(int32_t rows, int32_t tokens, int32_t row_unit, int32_t num_members) {
  const auto ceil_div = [](int32_t a, int32_t b) { return (a + b - 1) / b; };
  int32_t rows_per_cut = std::max(row_unit, kRowsPerCut / row_unit * row_unit);
  int32_t tokens_per_cut = kTokensPerCut;
  if (tokens <= kTileTokens) {
    const int32_t target = ceil_div(rows, num_members * kCutsPerMember);
    rows_per_cut = std::min(kMaxRowsPerCut, std::max(row_unit, ceil_div(target, row_unit) * row_unit));
    tokens_per_cut = kTileTokens;
  }
  return {rows,
          tokens,
          rows_per_cut,
          tokens_per_cut,
          ceil_div(rows, rows_per_cut),
          ceil_div(tokens, tokens_per_cut)};
}

}  // namespace plait
