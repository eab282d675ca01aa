// File blocks to float32: against the values that the gguf package gives, and through the packed layout.
#include <cmath>
#include <cstring>

#include "base/test.h"
#include "kernels/matmul/block_codes.h"
#include "kernels/matmul/dequantize_golden.h"
#include "kernels/matmul/half.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/packed_layout.h"
#include "kernels/matmul/random_blocks.h"

using namespace plait;

namespace {

uint64_t fnv1a(const void* data, size_t size) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3ULL;
  return hash;
}

bool same_bits(const float* a, const float* b, int64_t num) {
  return std::memcmp(a, b, static_cast<size_t>(num) * sizeof(float)) == 0;
}

}  // namespace

TEST(matches_gguf_package) {
  for (const DequantizeGolden& golden : kDequantizeGolden) {
    const int64_t cols = kGoldenBlocks * block_shape(golden.type).elements;
    const auto file = random_blocks(golden.type, kGoldenBlocks, static_cast<uint64_t>(golden.type));
    std::vector<float> out(static_cast<size_t>(cols));
    dequantize_row(golden.type, file.data(), cols, out.data());
    for (size_t i = 0; i < 4; ++i) CHECK_EQ(out[i], golden.first[i]);
    CHECK_EQ(fnv1a(out.data(), out.size() * sizeof(float)), golden.hash);
  }
}

TEST(golden_covers_every_quantised_type) {
  size_t num_quantised = 0;
  for (const GgmlType type : kAllGgmlTypes) num_quantised += block_shape(type).elements > 1 ? 1 : 0;
  CHECK_EQ(num_quantised, std::size(kDequantizeGolden));
}

TEST(packed_rows_give_the_same_bits) {
  constexpr int64_t kRows = 24;
  for (const GgmlType type : kAllGgmlTypes) {
    const BlockShape shape = block_shape(type);
    for (const int64_t blocks : {1, 3, 5}) {
      const int64_t cols = shape.elements == 1 ? blocks * kBlock : blocks * shape.elements;
      const int64_t row_bytes = cols / shape.elements * shape.bytes;
      const auto file = random_blocks(type, kRows * cols / shape.elements, 7);
      const size_t bytes = packed_num_bytes(type, kRows, cols);
      AlignedBytes packed(bytes);
      pack_rows(type, file.data(), cols, 8, 24, packed.data());  // ranges in any order
      pack_rows(type, file.data(), cols, 0, 8, packed.data());
      const PackedMatrix w{packed.data(), bytes, kRows, static_cast<int32_t>(cols), packed_kind(type)};
      std::vector<float> expected(static_cast<size_t>(cols));
      std::vector<float> got(static_cast<size_t>(cols));
      for (int64_t row = 0; row < kRows; ++row) {
        dequantize_row(type, file.data() + row * row_bytes, cols, expected.data());
        unpack_row(w, row, got.data());
        if (!same_bits(expected.data(), got.data(), cols)) test::fail(__FILE__, __LINE__, type_name(type));
      }
    }
  }
}

TEST(extreme_codes_survive_packing) {
  // All bits set or clear, so every scale, minimum and code stands at an end of its range.
  for (const GgmlType type : kAllGgmlTypes) {
    const BlockShape shape = block_shape(type);
    if (shape.elements == 1) continue;
    for (const int fill : {0x00, 0xff, 0x80, 0x7f}) {
      auto file = random_blocks(type, kRowGroup, 3);
      const HalfOffsets halves = half_offsets(type);
      for (size_t i = 0; i < file.size(); ++i) {
        const auto at = static_cast<int32_t>(i % static_cast<size_t>(shape.bytes));
        const bool is_half = at / 2 * 2 == halves.d || at / 2 * 2 == halves.min_d;
        if (!is_half) file[i] = static_cast<std::byte>(fill);
      }
      AlignedBytes packed(packed_num_bytes(type, kRowGroup, shape.elements));
      pack_rows(type, file.data(), shape.elements, 0, kRowGroup, packed.data());
      const PackedMatrix w{packed.data(), 0, kRowGroup, shape.elements, packed_kind(type)};
      float expected[kMaxBlockElements];
      float got[kMaxBlockElements];
      for (int64_t row = 0; row < kRowGroup; ++row) {
        dequantize_row(type, file.data() + row * shape.bytes, shape.elements, expected);
        unpack_row(w, row, got);
        CHECK(same_bits(expected, got, shape.elements));
      }
    }
  }
}

TEST(packing_does_not_grow_weights) {
  for (const GgmlType type : kAllGgmlTypes) {
    const BlockShape shape = block_shape(type);
    const double file_bytes = 64.0 * 512 / shape.elements * shape.bytes;
    CHECK(static_cast<double>(packed_num_bytes(type, 64, 512)) <= file_bytes * 1.04);
    CHECK(packed_type(packed_kind(type)) == type);
  }
}

TEST(unsupported_shapes_throw) {
  CHECK_THROWS(packed_num_bytes(GgmlType::kQ4_1, 12, 64));
  CHECK_THROWS(packed_num_bytes(GgmlType::kQ4_1, 8, 48));
  CHECK_THROWS(packed_num_bytes(GgmlType::kF32, 8, 33));
  CHECK_THROWS(packed_num_bytes(GgmlType::kQ4_K, 8, 128));
  CHECK_THROWS(packed_num_bytes(GgmlType::kQ4_1, 0, 64));
  CHECK_THROWS(packed_num_bytes(GgmlType::kQ4_1, -8, 64));
  CHECK_THROWS(packed_num_bytes(GgmlType::kQ4_1, int64_t{1} << 40, int64_t{1} << 40));
  CHECK_THROWS(packed_num_bytes(static_cast<GgmlType>(99), 8, 64));
  CHECK_EQ(packed_num_bytes(GgmlType::kQ4_1, 8, 64), size_t{320});
}

TEST(halves_are_exact) {
  // Every f16 number, against its definition.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_of_f16(static_cast<uint16_t>(bits));
    const uint32_t exponent = bits >> 10 & 31;
    const auto mantissa = static_cast<float>(bits & 1023);
    if (exponent == 31) {
      CHECK(mantissa == 0.0F ? std::isinf(value) : std::isnan(value));
      continue;
    }
    const float magnitude = exponent == 0 ? std::ldexp(mantissa, -24)
                                          : std::ldexp(1024.0F + mantissa, static_cast<int>(exponent) - 25);
    CHECK_EQ(std::fabs(value), magnitude);
    CHECK_EQ(std::signbit(value), (bits & 0x8000) != 0);
  }
  CHECK_EQ(float_of_bf16(0x3f80), 1.0F);
  CHECK_EQ(float_of_bf16(0xc040), -3.0F);
}

TEST_MAIN()
