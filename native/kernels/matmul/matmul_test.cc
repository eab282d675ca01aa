// The products: every ISA gives the bits of the scalar reference, no matter how the work is cut; the
// reference itself is held against a product in double precision.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/test.h"
#include "kernels/matmul/matmul_kernels.h"
#include "kernels/matmul/random_blocks.h"
#include "kernels/quantize/quantize.h"

using namespace plait;

namespace {

struct Case {
  GgmlType type;
  int32_t rows;
  int32_t cols;
  int32_t num_tokens;
  AlignedBytes packed;
  AlignedBytes q8;
  std::vector<float> x;
  PackedMatrix w;
  Acts acts;

  Case(GgmlType type_, int32_t rows_, int32_t cols_, int32_t tokens, std::vector<std::byte> file,
       std::vector<float> x_)
      : type(type_),
        rows(rows_),
        cols(cols_),
        num_tokens(tokens),
        packed(packed_num_bytes(type_, rows_, cols_)),
        q8(acts_q8_bytes(tokens, cols_)),
        x(std::move(x_)) {
    pack_rows(type, file.data(), cols, 0, rows, packed.data());
    w = {packed.data(), packed_num_bytes(type, rows, cols), rows, cols, packed_kind(type)};
    const Acts q8_only{q8.data(), nullptr, num_tokens, cols};
    for (int32_t t = 0; t < num_tokens; ++t) {
      quantize_kernel(Isa::kScalar)(x.data() + int64_t{t} * cols, t, 0, cols, q8_only);
    }
    acts = {q8.data(), x.data(), num_tokens, cols};
  }

  std::vector<float> multiply(Isa isa, int32_t row0, int32_t row1, int32_t t0, int32_t t1) const {
    const int64_t stride = row1 - row0 + 3;  // the gap must stay untouched
    std::vector<float> out(static_cast<size_t>((t1 - t0) * stride), 12345.0F);
    matmul_kernel(isa)(w, acts, row0, row1, t0, t1, out.data(), stride);
    std::vector<float> dense;
    for (int64_t t = 0; t < t1 - t0; ++t) {
      for (int64_t n = 0; n < row1 - row0; ++n) dense.push_back(out[static_cast<size_t>(t * stride + n)]);
      for (int64_t n = row1 - row0; n < stride; ++n)
        CHECK_EQ(out[static_cast<size_t>(t * stride + n)], 12345.0F);
    }
    return dense;
  }
};

int32_t type_block(GgmlType type) {
  const int32_t elements = block_shape(type).elements;
  return elements < kBlock ? kBlock : elements;
}

std::vector<std::byte> random_file(GgmlType type, int32_t rows, int32_t cols, uint64_t seed) {
  return random_blocks(type, int64_t{rows} * cols / block_shape(type).elements, seed);
}

std::vector<float> random_x(int32_t num, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(num));
  SplitMix64 random(seed);
  for (float& v : x) v = random.uniform() * std::ldexp(1.0F, random.below(6) - 3);
  return x;
}

Case random_case(GgmlType type, int32_t rows, int32_t cols, int32_t num_tokens, uint64_t seed) {
  return Case(type, rows, cols, num_tokens, random_file(type, rows, cols, seed),
              random_x(num_tokens * cols, seed + 1));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<Isa> wide_isas() {
  std::vector<Isa> isas = supported_isas();
  isas.erase(isas.begin());  // kScalar
  return isas;
}

void check(bool is_right, const Case& c, const char* what) {
  if (is_right) return;
  test::fail(__FILE__, __LINE__,
             std::string(type_name(c.type)) + " " + std::to_string(c.rows) + "x" + std::to_string(c.cols) +
                 " T" + std::to_string(c.num_tokens) + ": " + what);
}

}  // namespace

TEST(isas_agree_bit_for_bit) {
  SplitMix64 random(11);
  for (const GgmlType type : kAllGgmlTypes) {
    for (int32_t num_tokens = 1; num_tokens <= 40; num_tokens += num_tokens < 18 ? 1 : 11) {
      const int32_t rows = kRowGroup * (1 + random.below(6));
      const int32_t cols = type_block(type) * (1 + random.below(5));
      const Case c = random_case(type, rows, cols, num_tokens, random.next());
      const auto expected = c.multiply(Isa::kScalar, 0, rows, 0, num_tokens);
      for (const Isa isa : wide_isas()) {
        check(same_bits(expected, c.multiply(isa, 0, rows, 0, num_tokens)), c, isa_name(isa));
      }
    }
  }
}

TEST(every_number_of_groups_and_tokens) {
  // Pairs of groups, an odd one left over, each width of a tile, and two tiles with one token behind them.
  constexpr int32_t kMost = 2 * kTileTokens + 1;
  SplitMix64 random(13);
  for (const GgmlType type : kAllGgmlTypes) {
    for (int32_t groups = 1; groups <= 9; ++groups) {
      const int32_t rows = kRowGroup * groups;
      const Case c = random_case(type, rows, type_block(type) * (1 + groups % 2), kMost, random.next());
      const auto all = c.multiply(Isa::kScalar, 0, rows, 0, kMost);
      for (int32_t num = 1; num <= kMost; ++num) {
        const std::vector<float> expected(all.begin(), all.begin() + num * rows);
        for (const Isa isa : wide_isas()) {
          check(same_bits(expected, c.multiply(isa, 0, rows, 0, num)), c, isa_name(isa));
        }
      }
    }
  }
}

TEST(more_groups_than_a_panel_holds) {
  // 256 KiB of weights and more are walked in panels.
  for (const GgmlType type : {GgmlType::kQ4_1, GgmlType::kQ6_K, GgmlType::kF16}) {
    for (const int32_t num_tokens : {1, 10, 25}) {
      const Case c = random_case(type, kRowGroup * 67, 1024, num_tokens, 14);
      const auto expected = c.multiply(Isa::kScalar, 0, c.rows, 0, num_tokens);
      for (const Isa isa : wide_isas()) {
        check(same_bits(expected, c.multiply(isa, 0, c.rows, 0, num_tokens)), c, isa_name(isa));
      }
    }
  }
}

TEST(sub_ranges_give_the_same_bits) {
  SplitMix64 random(12);
  for (const GgmlType type : kAllGgmlTypes) {
    const int32_t rows = 72;
    const int32_t num_tokens = 29;
    const Case c = random_case(type, rows, type_block(type) * 3, num_tokens, random.next());
    const auto all = c.multiply(Isa::kScalar, 0, rows, 0, num_tokens);
    for (int round = 0; round < 12; ++round) {
      const int32_t row0 = kRowGroup * random.below(rows / kRowGroup);
      const int32_t row1 = row0 + kRowGroup * (1 + random.below((rows - row0) / kRowGroup));
      const int32_t t0 = kTileTokens * random.below(4);
      const int32_t t1 = t0 + 1 + random.below(num_tokens - t0);  // may cut a tile
      std::vector<float> expected;
      for (int32_t t = t0; t < t1; ++t) {
        for (int32_t n = row0; n < row1; ++n) expected.push_back(all[static_cast<size_t>(t * rows + n)]);
      }
      check(same_bits(expected, c.multiply(Isa::kScalar, row0, row1, t0, t1)), c, "scalar range");
      for (const Isa isa : wide_isas())
        check(same_bits(expected, c.multiply(isa, row0, row1, t0, t1)), c, "range");
    }
  }
}

TEST(a_token_alone_gives_the_bits_it_gives_in_a_batch) {
  for (const GgmlType type : kAllGgmlTypes) {
    const int32_t rows = 16;
    const int32_t cols = type_block(type) * 2;
    const auto file = random_file(type, rows, cols, 5);
    const auto x = random_x(13 * cols, 6);
    const Case batch(type, rows, cols, 13, file, x);
    for (const Isa isa : wide_isas()) {
      const auto all = batch.multiply(isa, 0, rows, 0, 13);
      for (int32_t t = 0; t < 13; ++t) {
        const Case alone(type, rows, cols, 1, file, {x.begin() + t * cols, x.begin() + (t + 1) * cols});
        check(same_bits(alone.multiply(isa, 0, rows, 0, 1),
                        {all.begin() + t * rows, all.begin() + (t + 1) * rows}),
              alone, "alone");
      }
    }
  }
}

TEST(close_to_the_exact_product) {
  for (const GgmlType type : kAllGgmlTypes) {
    const int32_t rows = 16;
    const int32_t cols = type_block(type) * 4;
    const int32_t num_tokens = 5;
    const Case c = random_case(type, rows, cols, num_tokens, 21);
    const auto out = c.multiply(Isa::kScalar, 0, rows, 0, num_tokens);
    std::vector<float> w(static_cast<size_t>(cols));
    for (int32_t n = 0; n < rows; ++n) {
      unpack_row(c.w, n, w.data());
      for (int32_t t = 0; t < num_tokens; ++t) {
        const float* x = c.x.data() + t * cols;
        double exact = 0.0;
        double bound = 0.0;  // half a step of each activation block times |w|, and float32 rounding
        for (int32_t k0 = 0; k0 < cols; k0 += kBlock) {
          double max_abs = 0.0;
          double sum_abs = 0.0;
          for (int32_t k = k0; k < k0 + kBlock; ++k) {
            exact += double{x[k]} * double{w[static_cast<size_t>(k)]};
            max_abs = std::fmax(max_abs, std::fabs(double{x[k]}));
            sum_abs += std::fabs(double{w[static_cast<size_t>(k)]});
          }
          bound += is_float_kind(c.w.kind) ? 1e-5 * max_abs * sum_abs
                                           : 0.502 * max_abs / 127 * sum_abs + 1e-4 * max_abs;
        }
        const double got = out[static_cast<size_t>(t * rows + n)];
        check(std::fabs(got - exact) <= bound, c, "far from the exact product");
      }
    }
  }
}

TEST(exact_where_nothing_rounds) {
  // Activations that are multiples of their scale: the result is the exact product up to float32 rounding.
  for (const GgmlType type : kAllGgmlTypes) {
    const int32_t cols = type_block(type);
    std::vector<float> x(static_cast<size_t>(cols));
    for (int32_t k = 0; k < cols; ++k)
      x[static_cast<size_t>(k)] = static_cast<float>(k % 32 == 0 ? 127 : k % 5 - 2);
    const Case c(type, 8, cols, 1, random_file(type, 8, cols, 31), x);
    std::vector<float> w(static_cast<size_t>(cols));
    for (const Isa isa : supported_isas()) {
      const auto out = c.multiply(isa, 0, 8, 0, 1);
      for (int32_t n = 0; n < 8; ++n) {
        unpack_row(c.w, n, w.data());
        double exact = 0.0;
        double scale = 0.0;
        for (size_t k = 0; k < w.size(); ++k) {
          exact += double{w[k]} * double{x[k]};
          scale += std::fabs(double{w[k]} * double{x[k]});
        }
        check(std::fabs(out[static_cast<size_t>(n)] - exact) <= 4e-6 * scale, c, "not exact");
      }
    }
  }
}

TEST(largest_products_do_not_overflow) {
  // Every code and activation at an end of its range, in each combination of signs.
  for (const GgmlType type : kAllGgmlTypes) {
    const int32_t cols = type_block(type);
    const HalfOffsets halves = half_offsets(type);
    const BlockShape shape = block_shape(type);
    if (shape.elements == 1) continue;
    for (const int fill : {0x00, 0xff, 0x80, 0x7f}) {
      auto file = random_file(type, 8, cols, 41);
      for (size_t i = 0; i < file.size(); ++i) {
        const auto at = static_cast<int32_t>(i % static_cast<size_t>(shape.bytes));
        if (at / 2 * 2 != halves.d && at / 2 * 2 != halves.min_d) file[i] = static_cast<std::byte>(fill);
      }
      for (const float sign : {1.0F, -1.0F}) {
        const Case c(type, 8, cols, 3, file, std::vector<float>(static_cast<size_t>(3 * cols), sign * 3.0F));
        const auto expected = c.multiply(Isa::kScalar, 0, 8, 0, 3);
        for (const Isa isa : wide_isas())
          check(same_bits(expected, c.multiply(isa, 0, 8, 0, 3)), c, "overflow");
      }
    }
  }
}

TEST(not_a_number_shows_in_every_output_of_its_token) {
  for (const GgmlType type : kAllGgmlTypes) {
    const int32_t cols = type_block(type) * 2;
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      auto x = random_x(3 * cols, 51);
      x[static_cast<size_t>(cols + 40)] = bad;
      const Case c(type, 8, cols, 3, random_file(type, 8, cols, 52), x);
      for (const Isa isa : supported_isas()) {
        const auto out = c.multiply(isa, 0, 8, 0, 3);
        for (size_t i = 0; i < out.size(); ++i) CHECK_EQ(std::isfinite(out[i]), i / 8 != 1);
      }
    }
  }
}

TEST(zero_activations_give_zero) {
  for (const GgmlType type : kAllGgmlTypes) {
    const int32_t cols = type_block(type);
    const Case c(type, 8, cols, 9, random_file(type, 8, cols, 61),
                 std::vector<float>(static_cast<size_t>(9 * cols)));
    for (const Isa isa : supported_isas()) {
      for (const float v : c.multiply(isa, 0, 8, 0, 9)) CHECK_EQ(v, 0.0F);
    }
  }
}

TEST_MAIN()
