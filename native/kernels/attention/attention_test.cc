// Attention against a double-precision oracle, and every way to split the work against every other, bit for
// bit.
#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "base/test.h"
#include "cpu/isa.h"

namespace plait {
namespace {

struct Shape {
  int32_t num_kv_heads = 1;
  int32_t head_dim = 64;
  int32_t block_tokens = 16;
  int32_t group = 1;
  int32_t context = 1;  // positions that are written
  int32_t window = 0;
  float softcap = 0.0F;
};

// 64-byte aligned bytes.
struct Scratch {
  explicit Scratch(size_t num_bytes) : bytes(num_bytes + 64) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    return bytes.data() + ((address + 63) / 64 * 64 - address);
  }
  std::vector<std::byte> bytes;
};

// A pool whose unwritten bytes are all NaN, and a sequence in scattered blocks of it.
struct Cache {
  Cache(const Shape& s, uint32_t seed) : shape(s), rng(seed) {
    layout = {.num_layers = 2,
              .num_kv_heads = s.num_kv_heads,
              .head_dim = s.head_dim,
              .block_tokens = s.block_tokens};
    const int32_t num_blocks = (s.context + s.block_tokens - 1) / s.block_tokens;
    pool.resize(layout.block_bytes() * static_cast<size_t>(num_blocks + 3));
    poison(0, pool.size());
    for (int32_t i = 0; i < num_blocks; ++i) table.push_back(num_blocks + 1 - i);
    std::shuffle(table.begin(), table.end(), rng);
    std::normal_distribution<float> normal;
    const size_t floats = size_t(s.context) * size_t(s.num_kv_heads) * size_t(s.head_dim);
    for (std::vector<float>* values : {&k, &v}) {
      values->resize(floats);
      for (float& x : *values) x = normal(rng);
    }
    for (int32_t position = 0; position < s.context; ++position) write(position, Isa::kScalar);
  }
  void poison(size_t begin, size_t end) {
    for (size_t i = begin; i + 1 < end; i += 2) {
      const uint16_t bad = (i / 2) % 3 == 0 ? 0xFC00 : 0x7E01;  // -infinity, NaN
      std::memcpy(pool.data() + i, &bad, 2);
    }
  }
  size_t row(int32_t position, int32_t head) const {
    return (size_t(position) * size_t(shape.num_kv_heads) + size_t(head)) * size_t(shape.head_dim);
  }
  std::byte* block(int32_t position) {
    return pool.data() + size_t(table[size_t(position / shape.block_tokens)]) * layout.block_bytes();
  }
  void write(int32_t position, Isa isa) {
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      kv_write_kernel(isa)(layout, block(position), 1, head, position % shape.block_tokens,
                           &k[row(position, head)], &v[row(position, head)]);
    }
  }

  Shape shape;
  std::mt19937 rng;
  KvLayout layout;
  std::vector<std::byte> pool;
  std::vector<int32_t> table;
  std::vector<float> k, v;  // [context][num_kv_heads][head_dim]
};

struct Run {
  int32_t position0 = 0;
  int32_t num_queries = 1;
};

std::vector<float> random_queries(Cache& cache, int32_t num) {
  std::normal_distribution<float> normal;
  std::vector<float> q(size_t(num) * size_t(cache.shape.group) * size_t(cache.shape.head_dim));
  for (float& x : q) x = normal(cache.rng);
  return q;
}

AttentionArgs make_args(Cache& cache, int32_t head, const Run& run, const float* q, float* out,
                        Scratch& scratch) {
  AttentionArgs args;
  args.layout = &cache.layout;
  args.pool = cache.pool.data();
  args.block_table = cache.table.data();
  args.layer = 1;
  args.kv_head = head;
  args.group = cache.shape.group;
  args.q = q;
  args.q_stride = int64_t{cache.shape.group} * cache.shape.head_dim;
  args.num_queries = run.num_queries;
  args.position0 = run.position0;
  args.window = cache.shape.window;
  args.scale = 1.0F / std::sqrt(static_cast<float>(cache.shape.head_dim));
  args.softcap = cache.shape.softcap;
  args.out = out;
  args.out_stride = args.q_stride;
  args.scratch = scratch.data();
  return args;
}

std::vector<float> attend(Isa isa, Cache& cache, int32_t head, const Run& run, const std::vector<float>& q) {
  Scratch scratch(attention_scratch_bytes(cache.layout, cache.shape.group, run.num_queries));
  std::vector<float> out(q.size(), -7.0F);
  attention_kernel(isa)(make_args(cache, head, run, q.data(), out.data(), scratch));
  return out;
}

std::vector<float> attend_in_parts(Isa isa, Cache& cache, int32_t head, int32_t position,
                                   const std::vector<float>& q) {
  Scratch scratch(attention_scratch_bytes(cache.layout, cache.shape.group, 1));
  std::vector<float> out(q.size());
  const AttentionArgs args = make_args(cache, head, {position, 1}, q.data(), out.data(), scratch);
  const int32_t num_parts = position / kPartition + 1;
  const size_t part_floats = size_t(cache.shape.group) * size_t(2 + cache.shape.head_dim);
  std::vector<float> partials(size_t(num_parts) * part_floats);
  for (int32_t i = num_parts - 1; i >= 0; --i) {
    attention_partial_kernel(isa)(args, i, &partials[size_t(i) * part_floats]);
    const int32_t first = cache.shape.window > 0 ? std::max(0, position + 1 - cache.shape.window) : 0;
    if ((i + 1) * kPartition <= first) CHECK_EQ(partials[size_t(i) * part_floats + 1], 0.0F);
  }
  attention_merge_kernel(isa)(partials.data(), num_parts, cache.shape.group, cache.shape.head_dim,
                              out.data());
  return out;
}

// One query of one query head.
std::vector<double> oracle(const Cache& cache, int32_t head, int32_t position, const float* q) {
  const Shape& s = cache.shape;
  const double scale = 1.0 / std::sqrt(double(s.head_dim));
  const int32_t first = s.window > 0 ? std::max(0, position + 1 - s.window) : 0;
  std::vector<double> scores;
  for (int32_t p = first; p <= position; ++p) {
    double dot = 0;
    for (int32_t d = 0; d < s.head_dim; ++d) {
      dot += double(q[d]) * double(half_to_float(float_to_half(cache.k[cache.row(p, head) + size_t(d)])));
    }
    dot *= scale;
    scores.push_back(s.softcap > 0 ? s.softcap * std::tanh(dot / s.softcap) : dot);
  }
  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  std::vector<double> out(size_t(s.head_dim));
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - highest);
    sum += weight;
    for (int32_t d = 0; d < s.head_dim; ++d) {
      const size_t at = cache.row(first + int32_t(i), head) + size_t(d);
      out[size_t(d)] += weight * double(half_to_float(float_to_half(cache.v[at])));
    }
  }
  for (double& x : out) x /= sum;
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double largest_error(Cache& cache, const Run& run, const std::vector<float>& q, const std::vector<float>& out,
                     int32_t head) {
  double worst = 0;
  const auto head_dim = size_t(cache.shape.head_dim);
  for (int32_t i = 0; i < run.num_queries; ++i) {
    for (int32_t g = 0; g < cache.shape.group; ++g) {
      const size_t at = (size_t(i) * size_t(cache.shape.group) + size_t(g)) * head_dim;
      const std::vector<double> expected = oracle(cache, head, run.position0 + i, &q[at]);
      for (size_t d = 0; d < head_dim; ++d) worst = std::max(worst, std::fabs(out[at + d] - expected[d]));
    }
  }
  return std::isfinite(worst) ? worst : 1e30;
}

// Values are N(0, 1), outputs within 5: the tolerance is some 16 units in the last place of 1.
constexpr double kTolerance = 2e-6;

// Everything that must hold for the last `num_queries` positions of a context.
void check_shape(const Shape& shape, int32_t num_queries, uint32_t seed) {
  Cache cache(shape, seed);
  const int32_t head = shape.num_kv_heads - 1;
  const Run run{shape.context - num_queries, num_queries};
  const std::vector<float> q = random_queries(cache, num_queries);
  const auto query_floats = size_t(shape.group) * size_t(shape.head_dim);
  const std::vector<float> expected = attend(Isa::kScalar, cache, head, run, q);
  const double error = largest_error(cache, run, q, expected, head);
  if (error > kTolerance) {
    std::printf("error %.3g: head_dim %d block %d group %d context %d queries %d window %d\n", error,
                shape.head_dim, shape.block_tokens, shape.group, shape.context, num_queries, shape.window);
  }
  CHECK(error <= kTolerance);
  for (const Isa isa : supported_isas()) {
    CHECK(same_bits(attend(isa, cache, head, run, q), expected));
    for (int32_t i = 0; i < num_queries; ++i) {
      const size_t at = size_t(i) * query_floats;
      const std::vector<float> one(q.begin() + int64_t(at), q.begin() + int64_t(at + query_floats));
      const std::vector<float> want(expected.begin() + int64_t(at),
                                    expected.begin() + int64_t(at + query_floats));
      const int32_t position = run.position0 + i;
      if (isa == Isa::kScalar && i % 5 != 0) continue;  // slow
      CHECK(same_bits(attend(isa, cache, head, {position, 1}, one), want));
      CHECK(same_bits(attend_in_parts(isa, cache, head, position, one), want));
    }
  }
}

TEST(attention_around_borders) {
  uint32_t seed = 1;
  for (const int32_t context : {1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 129, 511, 512, 513, 1024, 1025}) {
    for (const int32_t num_queries : {1, 2, 5, 16}) {
      if (num_queries <= context)
        check_shape({.head_dim = 32, .group = 2, .context = context}, num_queries, seed++);
    }
  }
}

TEST(attention_windows) {
  uint32_t seed = 100;
  for (const int32_t window : {1, 2, 15, 16, 17, 64, 100, 511, 512, 513, 2000}) {
    for (const int32_t context : {1, 16, 40, 513, 600, 1100}) {
      const Shape shape{.head_dim = 16, .group = 3, .context = context, .window = window};
      check_shape(shape, std::min(context, 16), seed++);
    }
  }
}

TEST(attention_head_dims_blocks_groups) {
  uint32_t seed = 200;
  for (const int32_t head_dim : {16, 48, 64, 80, 128, 256}) {
    for (const int32_t block_tokens : {16, 32, 64, 128, 512}) {
      const Shape shape{.num_kv_heads = 2,
                        .head_dim = head_dim,
                        .block_tokens = block_tokens,
                        .group = 1 + int32_t(seed % 8),
                        .context = 150 + int32_t(seed % 37),
                        .softcap = seed % 2 == 0 ? 0.0F : 30.0F};
      check_shape(shape, 1 + int32_t(seed % 16), seed);
      ++seed;
    }
  }
}

TEST(attention_random_shapes) {
  std::mt19937 rng(7);
  const auto pick = [&rng](int32_t lo, int32_t hi) {
    return std::uniform_int_distribution<int32_t>(lo, hi)(rng);
  };
  for (uint32_t i = 0; i < 60; ++i) {
    Shape shape;
    shape.num_kv_heads = pick(1, 3);
    shape.head_dim = 16 * pick(1, 6);
    shape.block_tokens = 16 << pick(0, 2);
    shape.group = pick(1, 9);
    shape.context = pick(1, 700);
    shape.window = pick(0, 2) == 0 ? pick(1, 300) : 0;
    shape.softcap = pick(0, 3) == 0 ? 5.0F : 0.0F;
    check_shape(shape, std::min(shape.context, pick(1, 16)), 1000 + i);
  }
}

// Later positions, in the same block and in the same tile, may hold anything; so may blocks before the
// window.
TEST(attention_sees_only_its_positions) {
  Cache cache({.head_dim = 32, .group = 2, .context = 80, .window = 20}, 5);
  const std::vector<float> q = random_queries(cache, 16);
  for (const Isa isa : supported_isas()) {
    const std::vector<float> before = attend(isa, cache, 0, {50, 16}, q);
    CHECK(std::isfinite(before[0]));
    const int32_t first_block = cache.table[0];
    cache.table[0] = -1000000;  // the window of position 50 starts in block 1
    for (int32_t position = 66; position < 80; ++position) {
      for (int32_t d = 0; d < 32; ++d) {
        cache.k[cache.row(position, 0) + size_t(d)] = std::numeric_limits<float>::quiet_NaN();
        cache.v[cache.row(position, 0) + size_t(d)] = std::numeric_limits<float>::infinity();
      }
      cache.write(position, isa);
    }
    CHECK(same_bits(attend(isa, cache, 0, {50, 16}, q), before));
    // A query that does see such a position spoils only itself.
    const std::vector<float> after = attend(isa, cache, 0, {51, 16}, q);
    CHECK(std::isnan(after[15 * 64]));
    CHECK(std::isfinite(after[14 * 64]));
    cache.table[0] = first_block;
  }
}

TEST(attention_large_scores) {
  Cache cache({.head_dim = 64, .group = 1, .context = 700}, 9);
  std::vector<float> q = random_queries(cache, 4);
  for (float& x : q) x *= 300.0F;
  const Run run{696, 4};
  const std::vector<float> expected = attend(Isa::kScalar, cache, 0, run, q);
  for (const float x : expected) CHECK(std::isfinite(x) && std::fabs(x) < 6.0F);
  for (const Isa isa : supported_isas()) CHECK(same_bits(attend(isa, cache, 0, run, q), expected));
}

TEST(kv_write_places_every_element) {
  for (const Isa isa : supported_isas()) {
    for (const int32_t block_tokens : {16, 32}) {
      const KvLayout layout{.num_layers = 2, .num_kv_heads = 3, .head_dim = 48, .block_tokens = block_tokens};
      std::vector<uint16_t> block(layout.block_bytes() / 2, 0x1234);
      std::vector<uint16_t> expected = block;
      std::vector<float> k(48), v(48);
      for (int32_t d = 0; d < 48; ++d) {
        k[size_t(d)] = 1.0F + float(d) * 0.37F;
        v[size_t(d)] = -3.0F - float(d) * 0.73F;
        expected[layout.k_offset(1, 2) / 2 + size_t(d) * size_t(block_tokens) + 5] =
            float_to_half(k[size_t(d)]);
        expected[layout.v_offset(1, 2) / 2 + 5 * 48 + size_t(d)] = float_to_half(v[size_t(d)]);
      }
      kv_write_kernel(isa)(layout, reinterpret_cast<std::byte*>(block.data()), 1, 2, 5, k.data(), v.data());
      CHECK(block == expected);
    }
  }
}

// Every f16, and floats around every rounding border, in all ISAs.
TEST(float16_is_exact) {
  static_assert(float_to_half(1.0F) == 0x3C00 && half_to_float(0x3C00) == 1.0F);
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float value = half_to_float(static_cast<uint16_t>(h));
    if (std::isnan(value)) {
      CHECK_EQ(float_to_half(value), h | 0x200U);
      continue;
    }
    CHECK_EQ(float_to_half(value), h);
    const int32_t mant = int32_t(h & 0x3FFU);
    const int32_t exponent = int32_t((h >> 10) & 0x1FU);
    if (exponent == 31) continue;
    const double exact = exponent == 0 ? std::ldexp(mant, -24) : std::ldexp(1024 + mant, exponent - 25);
    CHECK_EQ(double(std::fabs(value)), exact);
    // Half way to the next one up (65520, from the largest, is infinity): ties to even, beyond it up.
    const double next = exponent == 0 ? std::ldexp(mant + 1, -24) : std::ldexp(1025 + mant, exponent - 25);
    const auto middle = static_cast<float>((exact + next) / 2);
    const uint32_t magnitude = h & 0x7FFFU;
    CHECK_EQ(uint32_t(float_to_half(middle)), (magnitude & 1U) == 0 ? magnitude : magnitude + 1);
    CHECK_EQ(uint32_t(float_to_half(std::nextafter(middle, 1e9F))), magnitude + 1);
    CHECK_EQ(uint32_t(float_to_half(std::nextafter(middle, 0.0F))), magnitude);
  }
}

TEST(float16_kernels_agree) {
  const KvLayout layout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 16, .block_tokens = 16};
  std::mt19937 rng(3);
  for (int i = 0; i < 20000; ++i) {
    std::vector<float> x(16);
    for (float& value : x) {
      uint32_t bits = rng();
      if (i % 2 == 0) bits = (bits & 0x8FFFFFFFU) | 0x30000000U;  // around the subnormals of f16
      std::memcpy(&value, &bits, 4);
    }
    std::vector<std::vector<std::byte>> blocks;
    for (const Isa isa : supported_isas()) {
      std::vector<std::byte> block(layout.block_bytes());
      kv_write_kernel(isa)(layout, block.data(), 0, 0, i % 16, x.data(), x.data());
      blocks.push_back(std::move(block));
    }
    for (const auto& block : blocks) CHECK(block == blocks.front());
  }
}

}  // namespace
}  // namespace plait

TEST_MAIN()
