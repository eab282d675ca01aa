// The search for the largest product of all rows of a matrix, without reading all of it. Of a matrix of Q8_0
// the lower 2 bits of the codes are packed apart (kS8Apart). What is left is the same matrix in 6 bits, and
// for each group of rows it is known how far products with it can be off. So three quarters of the bytes are
// read, and then the few rows that can still have the largest product. Knows: the bound. Must not know:
// logits, sampling.
//
// A code c of the file is 4 h + l - 128 with l in 0..3; without l it stands for 4 h - 126.5, off by 0.5
// or 1.5. By block b of 32 columns with scale d_b and the differences r_b, a row's products differ by at most
// sum_b d_b |r_b . a_b| <= sqrt(sum_b d_b^2 |r_b|^2) |a| (Cauchy-Schwarz); float32 rounding of both adds less
// than (blocks + 16) 2^-23 times the largest that their terms can be, 256 sqrt(32) sqrt(sum_b d_b^2) |a|.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul/matmul.h"

namespace plait {

struct CoarseMatrix {
  PackedMatrix codes;  // of kind kU6
  const float* bounds =
      nullptr;  // [rows / kRowGroup]: times |a| (act_norm_bound) the bound of each of its rows
};

// Whether matrices of `type` can be packed to be searched.
constexpr bool can_be_searched(GgmlType type) { return type == GgmlType::kQ8_0; }

// Bytes of a matrix of kS8Apart: its records, its lower bits, and the bounds. They follow one another in
// packed memory.
struct SearchedBytes {
  size_t records, low, bounds;

  size_t all() const { return records + low + bounds; }
};
SearchedBytes searched_bytes(int64_t rows, int64_t cols);

// As pack_rows(), of a file matrix of Q8_0: records and bounds, or lower bits; `bounds` [rows / kRowGroup]
// begins with the row that stands at `src`. Where a scale is not finite the bound is infinite.
void pack_upper_rows(const std::byte* src, int64_t cols, int64_t row0, int64_t row1, std::byte* dst,
                     float* bounds);
void pack_lower_rows(const std::byte* src, int64_t cols, int64_t row0, int64_t row1, std::byte* dst);

// In which range the largest of the exact products lies.
struct LargestRange {
  float lower;
  float upper;
  int32_t group;  // the one that `lower` comes from
};

// `products`: in 6 bits, of num_groups * kRowGroup rows; `norm`: act_norm_bound() of their activations.
// What is not finite makes the range wider, never wrong.
LargestRange largest_range(const float* products, const float* bounds, int32_t num_groups, float norm);

// Whether a product of the rows of a group can be as large as `least`.
bool can_reach(const float* products, float bound, float norm, float least);

// No less than the length of what quantize() makes of x, which is off by half a step in each element.
// Infinite where products might overflow, so that ranges stay open.
float act_norm_bound(const float* x, int32_t cols);

}  // namespace plait
