// Coarse copies: every ISA multiplies them to the bits of the scalar reference, and no product with the
// matrix is further from the one with the copy than the bound says.
#include "kernels/matmul/coarse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/test.h"
#include "kernels/matmul/half.h"
#include "kernels/matmul/matmul_kernels.h"
#include "kernels/matmul/packed_layout.h"
#include "kernels/matmul/random_blocks.h"
#include "kernels/quantize/quantize.h"

using namespace plait;

namespace {

constexpr GgmlType kType = GgmlType::kQ8_0;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  int32_t rows, cols, num_tokens;
  std::vector<std::byte> file;
  std::vector<float> x;
  AlignedBytes packed, searched, q8;
  PackedMatrix plain;
  PackedMatrix apart;
  CoarseMatrix coarse;
  Acts acts;

  Case(int32_t rows_, int32_t cols_, int32_t tokens, std::vector<std::byte> file_, std::vector<float> x_)
      : rows(rows_),
        cols(cols_),
        num_tokens(tokens),
        file(std::move(file_)),
        x(std::move(x_)),
        packed(packed_num_bytes(kType, rows_, cols_)),
        searched(searched_bytes(rows_, cols_).all()),
        q8(acts_q8_bytes(tokens, cols_)) {
    pack_rows(kType, file.data(), cols, 0, rows, packed.data());
    const SearchedBytes bytes = searched_bytes(rows, cols);
    std::byte* low = searched.data() + bytes.records;
    auto* bounds = reinterpret_cast<float*>(low + bytes.low);
    pack_upper_rows(file.data(), cols, 0, rows, searched.data(), bounds);
    pack_lower_rows(file.data(), cols, 0, rows, low);
    plain = {packed.data(), packed_num_bytes(kType, rows, cols), rows, cols, PackedKind::kS8, nullptr};
    apart = {searched.data(), bytes.records, rows, cols, PackedKind::kS8Apart, low};
    coarse = {{searched.data(), bytes.records, rows, cols, PackedKind::kU6, nullptr}, bounds};
    acts = {q8.data(), nullptr, num_tokens, cols};
    for (int32_t t = 0; t < num_tokens; ++t) {
      quantize_kernel(Isa::kScalar)(x.data() + int64_t{t} * cols, t, 0, cols, acts);
    }
  }

  std::vector<float> multiply(const PackedMatrix& w, Isa isa) const {
    std::vector<float> out(static_cast<size_t>(rows) * static_cast<size_t>(num_tokens));
    matmul_kernel(isa)(w, acts, 0, rows, 0, num_tokens, out.data(), rows);
    return out;
  }
  float norm(int32_t t) const { return act_norm_bound(x.data() + int64_t{t} * cols, cols); }
};

std::vector<std::byte> random_file(int32_t rows, int32_t cols, uint64_t seed) {
  return random_blocks(kType, int64_t{rows} * cols / kBlock, seed);
}

std::vector<float> random_x(int32_t num, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(num));
  SplitMix64 random(seed);
  for (float& v : x) v = random.uniform() * std::ldexp(1.0F, random.below(8) - 4);
  return x;
}

Case random_case(int32_t rows, int32_t cols, int32_t num_tokens, uint64_t seed) {
  return Case(rows, cols, num_tokens, random_file(rows, cols, seed), random_x(num_tokens * cols, seed + 1));
}

// How much of the bound the worst difference of a product takes.
double worst_share(const Case& c) {
  const std::vector<float> exact = c.multiply(c.plain, Isa::kScalar);
  const std::vector<float> coarse = c.multiply(c.coarse.codes, Isa::kScalar);
  double worst = 0;
  for (int32_t t = 0; t < c.num_tokens; ++t) {
    for (int32_t n = 0; n < c.rows; ++n) {
      const auto i = static_cast<size_t>(t * c.rows + n);
      const double bound = double{c.coarse.bounds[n / kRowGroup]} * double{c.norm(t)};
      const double difference = std::fabs(double{exact[i]} - double{coarse[i]});
      if (difference > 0) worst = std::max(worst, difference / bound);
    }
  }
  return worst;
}

}  // namespace

TEST(isas_agree_bit_for_bit) {
  SplitMix64 random(3);
  for (int32_t num_tokens = 1; num_tokens <= 18; ++num_tokens) {
    for (const int32_t groups : {1, 2, 3, 8, 9}) {
      const Case c =
          random_case(kRowGroup * groups, kBlock * (1 + random.below(9)), num_tokens, random.next());
      const std::vector<float> exact = c.multiply(c.plain, Isa::kScalar);
      const std::vector<float> coarse = c.multiply(c.coarse.codes, Isa::kScalar);
      const auto check = [&](const PackedMatrix& w, Isa isa, const std::vector<float>& expected) {
        const std::vector<float> out = c.multiply(w, isa);
        if (std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0) return;
        test::fail(__FILE__, __LINE__, std::string(isa_name(isa)) + " T" + std::to_string(num_tokens));
      };
      for (const Isa isa : supported_isas()) {
        check(c.apart, isa, exact);
        check(c.coarse.codes, isa, coarse);
      }
    }
  }
}

TEST(ranges_of_rows_give_the_same_bits) {
  const Case c = random_case(72, 96, 9, 4);
  const std::vector<float> all = c.multiply(c.plain, Isa::kScalar);
  for (const Isa isa : supported_isas()) {
    for (int32_t row0 = 0; row0 < c.rows; row0 += kRowGroup) {
      for (int32_t row1 = row0 + kRowGroup; row1 <= c.rows; row1 += kRowGroup) {
        for (const int32_t t1 : {1, 4, 9}) {
          const int32_t num = row1 - row0;
          std::vector<float> out(static_cast<size_t>(num * t1));
          matmul_kernel(isa)(c.apart, c.acts, row0, row1, 0, t1, out.data(), num);
          for (int32_t t = 0; t < t1; ++t) {
            CHECK(std::memcmp(out.data() + t * num, all.data() + t * c.rows + row0,
                              sizeof(float) * static_cast<size_t>(num)) == 0);
          }
        }
      }
    }
  }
}

TEST(extreme_codes_do_not_overflow) {
  for (const int fill : {0x00, 0xff, 0x80, 0x7f}) {
    std::vector<std::byte> file = random_file(16, 64, 6);
    for (size_t i = 0; i < file.size(); ++i) {
      if (i % static_cast<size_t>(block_shape(kType).bytes) >= 2) file[i] = static_cast<std::byte>(fill);
    }
    for (const float sign : {1.0F, -1.0F}) {
      const Case c(16, 64, 3, file, std::vector<float>(192, sign * 3.0F));
      for (const Isa isa : supported_isas()) {
        CHECK(c.multiply(c.apart, isa) == c.multiply(c.plain, Isa::kScalar));
        CHECK(c.multiply(c.coarse.codes, isa) == c.multiply(c.coarse.codes, Isa::kScalar));
      }
      CHECK(worst_share(c) <= 1.0);
    }
  }
}

TEST(codes_are_cut_in_upper_and_lower_bits) {
  const Case c = random_case(16, 96, 1, 5);
  std::vector<float> expected(96), unpacked(96);
  BlockCodes whole;
  BlockCodes upper;
  for (int32_t row = 0; row < c.rows; ++row) {
    dequantize_row(kType, c.file.data() + row * 96 / kBlock * block_shape(kType).bytes, 96, expected.data());
    unpack_row(c.apart, row, unpacked.data());
    CHECK(expected == unpacked);
    const std::byte* group =
        c.apart.data + static_cast<size_t>(row / kRowGroup) * group_bytes(PackedKind::kU6, 96);
    for (int32_t b = 0; b < c.cols / kBlock; ++b) {
      decode_block(kType, c.file.data() + (row * c.cols / kBlock + b) * block_shape(kType).bytes, whole);
      read_record(PackedKind::kU6, group + b * record_shape(PackedKind::kU6).bytes(), row % kRowGroup, upper);
      CHECK_EQ(upper.d, whole.d);
      for (int32_t k = 0; k < kBlock; ++k) {
        CHECK(std::fabs(4 * upper.code[k] - 126.5 - static_cast<int8_t>(whole.code[k])) <= 1.5);
      }
    }
  }
}

TEST(no_product_is_further_off_than_the_bound) {
  SplitMix64 random(7);
  for (int round = 0; round < 60; ++round) {
    const Case c =
        random_case(kRowGroup * (1 + random.below(6)), kBlock * (1 + random.below(24)), 3, random.next());
    CHECK(worst_share(c) <= 1.0);
  }
  // Activations that point where a row's differences do: the bound is met, not passed.
  double worst = 0;
  for (int round = 0; round < 20; ++round) {
    const std::vector<std::byte> file = random_file(8, 256, random.next());
    std::vector<float> x(256);
    for (int32_t b = 0; b < 8; ++b) {
      BlockCodes block;
      decode_block(kType, file.data() + b * block_shape(kType).bytes, block);
      const float d = float_of_f16(block.d);
      for (int32_t k = 0; k < kBlock; ++k) {
        x[static_cast<size_t>(b * kBlock + k)] =
            d * (static_cast<float>((static_cast<int8_t>(block.code[k]) + 128) % 4) - 1.5F);
      }
    }
    const double share = worst_share(Case(8, 256, 1, file, x));
    CHECK(share <= 1.0);
    worst = std::max(worst, share);
  }
  CHECK(worst > 0.7);
}

TEST(rows_may_be_packed_in_any_ranges) {
  const Case c = random_case(72, 64, 1, 9);
  const SearchedBytes bytes = searched_bytes(72, 64);
  std::vector<std::byte> records(bytes.records), low(bytes.low);
  std::vector<float> bounds(9);
  for (const auto& [row0, row1] : {std::pair{40, 72}, std::pair{0, 8}, std::pair{8, 40}}) {
    pack_upper_rows(c.file.data(), 64, row0, row1, records.data(), bounds.data());
    pack_lower_rows(c.file.data(), 64, row0, row1, low.data());
  }
  CHECK(std::memcmp(records.data(), c.apart.data, records.size()) == 0);
  CHECK(std::memcmp(low.data(), c.apart.low, low.size()) == 0);
  CHECK(std::memcmp(bounds.data(), c.coarse.bounds, bytes.bounds) == 0);
}

TEST(the_largest_is_in_its_range_and_in_a_group_that_can_reach_it) {
  SplitMix64 random(11);
  int64_t num_reaching = 0;
  int64_t num_groups = 0;
  for (int round = 0; round < 30; ++round) {
    const Case c = random_case(8 * 64, 32 * (1 + random.below(20)), 4, random.next());
    const std::vector<float> exact = c.multiply(c.plain, Isa::kScalar);
    const std::vector<float> coarse = c.multiply(c.coarse.codes, Isa::kScalar);
    for (int32_t t = 0; t < c.num_tokens; ++t) {
      const float* row = exact.data() + t * c.rows;
      const auto best = static_cast<int32_t>(std::max_element(row, row + c.rows) - row);
      const float* products = coarse.data() + t * c.rows;
      const LargestRange range = largest_range(products, c.coarse.bounds, c.rows / kRowGroup, c.norm(t));
      CHECK(range.lower <= row[best]);
      CHECK(row[best] <= range.upper);
      const float* group = row + range.group * kRowGroup;
      CHECK(*std::max_element(group, group + kRowGroup) >= range.lower);
      for (int32_t g = 0; g < c.rows / kRowGroup; ++g) {
        const bool reaches = can_reach(products + g * kRowGroup, c.coarse.bounds[g], c.norm(t), row[best]);
        CHECK(reaches || g != best / kRowGroup);
        num_reaching += reaches ? 1 : 0;
        ++num_groups;
      }
    }
  }
  CHECK(num_reaching < num_groups / 4);  // or there would be no point in it
}

TEST(what_is_not_finite_leaves_the_range_open) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> products(24, 1.0F);
  const std::vector<float> bounds(3, 0.5F);
  products[9] = 3.0F;
  LargestRange range = largest_range(products.data(), bounds.data(), 3, 2.0F);
  CHECK_EQ(range.lower, 2.0F);
  CHECK_EQ(range.upper, 4.0F);
  CHECK_EQ(range.group, 1);
  for (const float norm : {nan, kInfinity}) {
    range = largest_range(products.data(), bounds.data(), 3, norm);
    CHECK_EQ(range.lower, -kInfinity);
    CHECK_EQ(range.upper, kInfinity);
    CHECK(can_reach(products.data(), bounds[0], norm, 100.0F));
  }
  CHECK_EQ(act_norm_bound(std::vector<float>(32, 1e28F).data(), 32), kInfinity);
  CHECK_EQ(act_norm_bound(std::vector<float>(32, nan).data(), 32), kInfinity);
  CHECK(act_norm_bound(std::vector<float>(32, 1e26F).data(), 32) < kInfinity);
  // A sum that overflows says nothing about the exact one.
  products[0] = kInfinity;
  range = largest_range(products.data(), bounds.data(), 3, 2.0F);
  CHECK_EQ(range.lower, 2.0F);
  CHECK_EQ(range.upper, kInfinity);

  // A scale that is not finite.
  for (const uint16_t scale : {uint16_t{0x7C00}, uint16_t{0x7E00}}) {
    std::vector<std::byte> file = random_file(16, 64, 13);
    std::memcpy(file.data() + 3 * block_shape(kType).bytes, &scale, sizeof scale);
    const Case c(16, 64, 1, file, random_x(64, 14));
    CHECK_EQ(c.coarse.bounds[0], kInfinity);
    CHECK(std::isfinite(c.coarse.bounds[1]));
  }
}

TEST_MAIN()
