#include "kernels/matmul/coarse.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/matmul/half.h"
#include "kernels/matmul/packed_layout.h"

namespace plait {

namespace {

constexpr int kLowStep = 1 << kLowBits;
constexpr double kLowMiddle = (kLowStep - 1) / 2.0;

// What a row's blocks add up to.
struct RowSums {
  double scales = 0;       // d^2
  double differences = 0;  // d^2 |r|^2
};

// The codes of the records of a file block's.
void take_upper(BlockCodes& block, RowSums& sums) {
  double squares = 0;
  for (int32_t k = 0; k < kBlock; ++k) {
    const int code = static_cast<int8_t>(block.code[k]) + 128;
    block.code[k] = static_cast<uint8_t>(code / kLowStep);
    const double difference = code % kLowStep - kLowMiddle;
    squares += difference * difference;
  }
  const double d = float_of_f16(block.d);
  sums.scales += d * d;
  sums.differences += d * d * squares;
}

// fn(rows, row, b): blocks b of the 8 rows from `row` on.
template <typename Fn>
void for_blocks(const std::byte* src, int64_t cols, int64_t row0, int64_t row1, const Fn& fn) {
  const int64_t num_blocks = cols / kBlock;
  const int64_t block_bytes = block_shape(GgmlType::kQ8_0).bytes;
  BlockCodes rows[kRowGroup];
  for (int64_t row = row0; row < row1; row += kRowGroup) {
    for (int64_t b = 0; b < num_blocks; ++b) {
      for (int64_t i = 0; i < kRowGroup; ++i) {
        decode_block(GgmlType::kQ8_0, src + ((row + i) * num_blocks + b) * block_bytes, rows[i]);
      }
      fn(rows, row, b);
    }
  }
}

float bound_of(const RowSums& sums, int64_t num_blocks) {
  const double largest_terms = 256 * std::sqrt(kBlock * sums.scales);
  const double bound =
      1.001 * std::sqrt(sums.differences) + static_cast<double>(num_blocks + 16) * 0x1p-23 * largest_terms;
  return std::isfinite(bound) ? std::nextafter(static_cast<float>(bound), std::numeric_limits<float>::max())
                              : std::numeric_limits<float>::infinity();
}

}  // namespace

SearchedBytes searched_bytes(int64_t rows, int64_t cols) {
  const auto num_groups = static_cast<size_t>(rows / kRowGroup);
  return {num_groups * group_bytes(PackedKind::kS8Apart, cols),
          num_groups * low_group_bytes(PackedKind::kS8Apart, cols), num_groups * sizeof(float)};
}

void pack_upper_rows(const std::byte* src, int64_t cols, int64_t row0, int64_t row1, std::byte* dst,
                     float* bounds) {
  const int64_t num_blocks = cols / kBlock;
  const auto step = static_cast<int64_t>(group_bytes(PackedKind::kS8Apart, cols));
  RowSums sums[kRowGroup];
  for_blocks(src, cols, row0, row1, [&](BlockCodes* rows, int64_t row, int64_t b) {
    if (b == 0) std::fill_n(sums, kRowGroup, RowSums{});
    for (int64_t i = 0; i < kRowGroup; ++i) take_upper(rows[i], sums[i]);
    write_record(PackedKind::kS8Apart, rows,
                 dst + row / kRowGroup * step + b * record_shape(PackedKind::kS8Apart).bytes());
    if (b + 1 < num_blocks) return;
    float& bound = bounds[row / kRowGroup];
    bound = 0;
    for (const RowSums& of_row : sums) bound = std::max(bound, bound_of(of_row, num_blocks));
  });
}

void pack_lower_rows(const std::byte* src, int64_t cols, int64_t row0, int64_t row1, std::byte* dst) {
  const auto step = static_cast<int64_t>(low_group_bytes(PackedKind::kS8Apart, cols));
  for_blocks(src, cols, row0, row1, [&](BlockCodes* rows, int64_t row, int64_t b) {
    write_low(rows, dst + row / kRowGroup * step + b * kLowPartBytes);
  });
}

namespace {

// Not a number when one of the bounds is; products that are not a number are passed over, since they come
// with such a bound.
LargestRange range_of_group(const float* products, float bound, float norm) {
  float largest = products[0];
  for (int32_t i = 1; i < kRowGroup; ++i) largest = products[i] > largest ? products[i] : largest;
  const float margin = bound * norm;
  return {largest - margin, largest + margin, 0};
}

}  // namespace

LargestRange largest_range(const float* products, const float* bounds, int32_t num_groups, float norm) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  LargestRange all{-kInfinity, -kInfinity, 0};
  for (int32_t g = 0; g < num_groups; ++g, products += kRowGroup) {
    const LargestRange group = range_of_group(products, bounds[g], norm);
    if (group.lower > all.lower && group.lower < kInfinity) {
      all.lower = group.lower;
      all.group = g;
    }
    if (!(group.upper <= all.upper)) all.upper = group.upper == group.upper ? group.upper : kInfinity;
  }
  return all;
}

bool can_reach(const float* products, float bound, float norm, float least) {
  return !(range_of_group(products, bound, norm).upper < least);
}

float act_norm_bound(const float* x, int32_t cols) {
  double squares = 0;
  for (int32_t i = 0; i < cols; ++i) squares += double{x[i]} * double{x[i]};
  // Half a step is max|x| / 254 at most, in 32 elements of a block: sqrt(32) / 254 of the block's length.
  constexpr double kQuantised = 1.0 + 5.66 / 254 + 1e-5;
  const double bound = kQuantised * std::sqrt(squares);
  // Below it no sum of terms of a row, at most 65504 * 128 * sqrt(cols) times as much, comes near the largest
  // float.
  constexpr double kLargest = 1e28;
  return bound < kLargest ? static_cast<float>(bound) : std::numeric_limits<float>::infinity();
}

}  // namespace plait
