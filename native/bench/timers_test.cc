// The timers: what they time is right, a wrong kernel gets no time, and ceilings count what was done.
#include "base/error.h"
#include "base/test.h"
#include "bench/attention_timer.h"
#include "bench/matmul_timer.h"
#include "kernels/matmul/random_blocks.h"

using namespace plait;

namespace {

constexpr size_t kColdBytes = 200'000;

KernelTable chosen() { return kernel_table(choose_isa().isa); }

MatmulTimer matmul_timer(Rig& rig, GgmlType type, int32_t rows, int32_t cols,
                         MatrixForm form = MatrixForm::kPlain) {
  const int64_t num_blocks = int64_t{rows} * cols / block_shape(type).elements;
  const std::vector<std::byte> first = random_blocks(type, num_blocks, 1);
  const std::vector<std::byte> second = random_blocks(type, num_blocks, 2);
  return MatmulTimer(rig, type, rows, cols, {first.data(), second.data()}, kColdBytes, form);
}

void check_timed(const Timing& timing, size_t num_runs) {
  CHECK_EQ(timing.difference, std::string());
  CHECK_EQ(timing.seconds.size(), num_runs);
  for (const double seconds : timing.seconds) CHECK(seconds > 0 && seconds < 100);
}

// Right but for one output.
void wrong_in_one_place(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0,
                        int32_t t1, float* out, int64_t out_stride) {
  chosen().matmul(w, acts, row0, row1, t0, t1, out, out_stride);
  if (row1 == w.rows && t1 == acts.num_tokens) out[(t1 - t0 - 1) * out_stride + row1 - row0 - 1] += 1.0F;
}

void silent(const AttentionArgs&) {}
void silent_partial(const AttentionArgs&, int32_t, float*) {}

}  // namespace

TEST(loops_count_every_multiply_add) {
  for (const Isa isa : supported_isas()) {
    for (const MacUnit unit : {MacUnit::kF32, MacUnit::kInt8, MacUnit::kInt6}) {
      const MacLoopFn loop = mac_loop(isa, unit);
      const uint64_t one = loop(1);
      CHECK(one >= 8);
      CHECK_EQ(loop(0), uint64_t{0});
      CHECK_EQ(loop(1000), 1000 * one);
      CHECK_EQ(loop(kMaxMacRounds), static_cast<uint64_t>(kMaxMacRounds) * one);
    }
  }
}

TEST(ceilings_are_rates_of_every_run) {
  Rig rig(chosen(), 2, {});
  for (const bool is_alone : {true, false}) {
    const auto reads = rig.read_rates(size_t{4} << 20, is_alone, 3);
    CHECK_EQ(reads.size(), size_t{15});
    for (const double rate : reads) CHECK(rate > 1e7 && rate < 1e13);
    const auto macs = rig.mac_rates(MacUnit::kInt8, is_alone, 2);
    CHECK_EQ(macs.size(), size_t{2});
    for (const double rate : macs) CHECK(rate > 1e6 && rate < 1e14);
  }
}

TEST(units_are_walked_round_and_round) {
  Rig rig(chosen(), 1, {});
  int64_t expected = 0;
  const auto runs = rig.time_units(3, 2, [&](int64_t first, int64_t count) {
    CHECK_EQ(first, expected);
    CHECK(count >= 1 && count <= 3);
    expected = (first + count) % 3;
    const int64_t begin = monotonic_ns();
    while (monotonic_ns() - begin < count * 1'000'000) {
    }
  });
  CHECK_EQ(runs.size(), size_t{2});
  for (const double seconds : runs) CHECK(seconds >= 0.001);  // of one unit
}

TEST(every_type_is_timed_at_every_isa) {
  for (const Isa isa : supported_isas()) {
    Rig rig(kernel_table(isa), 2, {});
    for (const GgmlType type : {GgmlType::kQ4_1, GgmlType::kQ6_K, GgmlType::kF16}) {
      MatmulTimer timer = matmul_timer(rig, type, 72, 256);
      CHECK(timer.matrix_bytes() * static_cast<size_t>(timer.num_copies()) >= kColdBytes);
      for (const int32_t num_tokens : {1, 70}) check_timed(timer.run(num_tokens, 1), 1);
    }
    size_t bytes[2];
    for (const MatrixForm form : {MatrixForm::kApart, MatrixForm::kCoarse}) {
      MatmulTimer timer = matmul_timer(rig, GgmlType::kQ8_0, 72, 256, form);
      for (const int32_t num_tokens : {1, 70}) check_timed(timer.run(num_tokens, 1), 1);
      bytes[form == MatrixForm::kCoarse] = timer.matrix_bytes();
      CHECK_THROWS(matmul_timer(rig, GgmlType::kQ4_1, 72, 256, form));
    }
    CHECK_EQ(bytes[0], packed_num_bytes(GgmlType::kQ8_0, 72, 256));
    CHECK_EQ(bytes[1] * 34, bytes[0] * 26);  // 6 of 8 bits, and the scales
  }
}

TEST(a_wrong_product_is_not_timed) {
  KernelTable kernels = chosen();
  kernels.matmul = wrong_in_one_place;
  Rig rig(kernels, 2, {});
  MatmulTimer timer = matmul_timer(rig, GgmlType::kQ8_0, 64, 64);
  for (const int32_t num_tokens : {1, 9, 70}) {
    const Timing timing = timer.run(num_tokens, 1);
    CHECK(timing.seconds.empty());
    CHECK(timing.difference.find("row 63 of token " + std::to_string(num_tokens - 1)) != std::string::npos);
  }
}

TEST(attention_is_timed_whole_and_split) {
  const KvLayout layout{3, 2, 32, 16};
  for (const Isa isa : supported_isas()) {
    Rig rig(kernel_table(isa), 2, {});
    for (const AttentionShape& shape :
         {AttentionShape{2, 40, 1, 0, 0.2F, 0.0F}, AttentionShape{2, 1100, 1, 0, 0.2F, 0.0F},
          AttentionShape{2, 1100, 1, 600, 0.2F, 5.0F}, AttentionShape{3, 50, 50, 0, 0.2F, 0.0F}}) {
      AttentionTimer timer(rig, layout, shape, kColdBytes);
      check_timed(timer.run(1), 1);
    }
  }
}

TEST(attention_counts_what_queries_see) {
  Rig rig(chosen(), 1, {});
  const KvLayout layout{3, 2, 32, 16};
  const double per_position = 4.0 * 2 * 32;  // K and V, f16
  const AttentionTimer decode(rig, layout, {2, 100, 1, 0, 1.0F, 0.0F}, 1);
  CHECK_EQ(decode.macs(), 2.0 * 100 * 4 * 32);
  CHECK_EQ(decode.kv_bytes(), 100 * per_position);
  const AttentionTimer windowed(rig, layout, {2, 100, 1, 30, 1.0F, 0.0F}, 1);
  CHECK_EQ(windowed.macs(), 2.0 * 30 * 4 * 32);
  CHECK_EQ(windowed.kv_bytes(), 30 * per_position);
  const AttentionTimer prefill(rig, layout, {2, 100, 100, 0, 1.0F, 0.0F}, 1);
  CHECK_EQ(prefill.macs(), 2.0 * (100 * 101 / 2) * 4 * 32);
  CHECK_EQ(prefill.kv_bytes(), 100 * per_position);
}

TEST(wrong_attention_is_not_timed) {
  KernelTable kernels = chosen();
  kernels.attention = silent;
  kernels.attention_partial = silent_partial;
  Rig rig(kernels, 2, {});
  for (const int32_t context : {40, 1100}) {
    AttentionTimer timer(rig, {2, 2, 32, 16}, {1, context, 1, 0, 1.0F, 0.0F}, kColdBytes);
    const Timing timing = timer.run(1);
    CHECK(timing.seconds.empty());
    CHECK(timing.difference.find("kv head 0 of query 0") != std::string::npos);
  }
}

TEST(sizes_that_do_not_fit_are_errors) {
  Rig rig(chosen(), 1, {});
  const std::vector<std::byte> bytes(100'000);
  CHECK_THROWS(MatmulTimer(rig, GgmlType::kQ4_1, 64, 40, {bytes.data()}, 1));
  CHECK_THROWS(MatmulTimer(rig, GgmlType::kQ4_1, 9, 64, {bytes.data()}, 1));
  CHECK_THROWS(MatmulTimer(rig, GgmlType::kQ4_1, 64, 64, {}, 1));
  CHECK_THROWS(AttentionTimer(rig, {1, 1, 20, 16}, {1, 40, 1, 0, 1.0F, 0.0F}, 1));
  CHECK_THROWS(AttentionTimer(rig, {1, 1, 32, 16}, {1, 4, 5, 0, 1.0F, 0.0F}, 1));
  MatmulTimer timer = matmul_timer(rig, GgmlType::kF32, 64, 64);
  CHECK_THROWS(timer.run(0, 1));
  CHECK_THROWS(timer.run(1, 0));
}

TEST_MAIN()
