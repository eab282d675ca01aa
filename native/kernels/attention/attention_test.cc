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
  KvDtype dtype = KvDtype::kF16;
};

constexpr KvDtype kDtypes[] = {KvDtype::kF16, KvDtype::kQ8};

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
              .block_tokens = s.block_tokens,
              .dtype = s.dtype};
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

  // K or V of one position and head as the cache holds it, from the definition in attention.h.
  std::vector<double> stored(bool is_k, int32_t position, int32_t head) const {
    const float* x = &(is_k ? k : v)[row(position, head)];
    const auto head_dim = size_t(shape.head_dim);
    std::vector<double> out(head_dim);
    if (shape.dtype == KvDtype::kF16) {
      for (size_t d = 0; d < head_dim; ++d) out[d] = double(half_to_float(float_to_half(x[d])));
      return out;
    }
    const int32_t num_shared = is_k ? kScaleDims : shape.head_dim;  // elements of one scale
    for (int32_t d0 = 0; d0 < shape.head_dim; d0 += num_shared) {
      const int32_t end = std::min(d0 + num_shared, shape.head_dim);
      const double scale = scale_of(x + d0, end - d0);
      for (auto d = size_t(d0); d < size_t(end); ++d) {
        out[d] = scale > 0 ? std::nearbyint(double(x[d]) / scale) * scale : 0.0;
      }
    }
    return out;
  }
  // The least f16 that is not below the largest magnitude / 127.
  static double scale_of(const float* x, int32_t num) {
    double largest = 0;
    for (int32_t d = 0; d < num; ++d) largest = std::max(largest, std::fabs(double(x[d])));
    uint32_t half = 0;  // f16 of one sign are in the order of their bits
    for (uint32_t step = 0x4000; step > 0; step /= 2) {
      if (double(half_to_float(static_cast<uint16_t>(half + step - 1))) < largest / 127.0) half += step;
    }
    return double(half_to_float(static_cast<uint16_t>(half)));
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

// Some positions of some head, perhaps none: what is fetched changes no result.
KvRange any_range(Cache& cache) {
  const auto any = [&cache](int32_t most) {
    return std::uniform_int_distribution<int32_t>(0, most)(cache.rng);
  };
  return {cache.table.data(), any(cache.shape.num_kv_heads - 1), any(cache.shape.context),
          any(cache.shape.context)};
}

std::vector<float> attend_in_parts(Isa isa, Cache& cache, int32_t head, const Run& run,
                                   const std::vector<float>& q) {
  Scratch scratch(attention_scratch_bytes(cache.layout, cache.shape.group, run.num_queries));
  std::vector<float> out(q.size());
  AttentionArgs args = make_args(cache, head, run, q.data(), out.data(), scratch);
  const int32_t num_parts = (run.position0 + run.num_queries - 1) / kPartition + 1;
  const int32_t num_rows = run.num_queries * cache.shape.group;
  const size_t part_floats = size_t(num_rows) * size_t(2 + cache.shape.head_dim);
  std::vector<float> partials(size_t(num_parts) * part_floats, -7.0F);
  for (int32_t i = num_parts - 1; i >= 0; --i) {
    args.next = any_range(cache);
    attention_partial_kernel(isa)(args, i, &partials[size_t(i) * part_floats]);
    const int32_t first = cache.shape.window > 0 ? std::max(0, run.position0 + 1 - cache.shape.window) : 0;
    if ((i + 1) * kPartition <= first) CHECK_EQ(partials[size_t(i) * part_floats + 1], 0.0F);
  }
  attention_merge_kernel(isa)(partials.data(), num_parts, num_rows, cache.shape.head_dim, out.data());
  return out;
}

// One query of one query head over K and V as the cache holds them.
std::vector<double> oracle(const Cache& cache, int32_t head, int32_t position, const float* q) {
  const Shape& s = cache.shape;
  const double scale = 1.0 / std::sqrt(double(s.head_dim));
  const int32_t first = s.window > 0 ? std::max(0, position + 1 - s.window) : 0;
  std::vector<double> scores;
  for (int32_t p = first; p <= position; ++p) {
    const std::vector<double> k = cache.stored(true, p, head);
    double dot = 0;
    for (size_t d = 0; d < k.size(); ++d) dot += double(q[d]) * k[d];
    dot *= scale;
    scores.push_back(s.softcap > 0 ? s.softcap * std::tanh(dot / s.softcap) : dot);
  }
  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  std::vector<double> out(size_t(s.head_dim));
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - highest);
    sum += weight;
    const std::vector<double> v = cache.stored(false, first + int32_t(i), head);
    for (size_t d = 0; d < v.size(); ++d) out[d] += weight * v[d];
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

// Values are N(0, 1), outputs within 5. f16: some 16 units in the last place of 1. kQ8: queries and weights
// are rounded to 1 / 32767 of the largest of their row; that moves a score by some 1e-4 (K and V themselves
// are compared as stored).
double tolerance(KvDtype dtype) { return dtype == KvDtype::kF16 ? 2e-6 : 4e-4; }

// Everything that must hold for the last `num_queries` positions of a context.
void check_shape(const Shape& shape, int32_t num_queries, uint32_t seed) {
  Cache cache(shape, seed);
  const int32_t head = shape.num_kv_heads - 1;
  const Run run{shape.context - num_queries, num_queries};
  const std::vector<float> q = random_queries(cache, num_queries);
  const auto query_floats = size_t(shape.group) * size_t(shape.head_dim);
  const std::vector<float> expected = attend(Isa::kScalar, cache, head, run, q);
  const double error = largest_error(cache, run, q, expected, head);
  if (error > tolerance(shape.dtype)) {
    std::printf("dtype %d error %.3g: head_dim %d block %d group %d context %d queries %d window %d\n",
                int(shape.dtype), error, shape.head_dim, shape.block_tokens, shape.group, shape.context,
                num_queries, shape.window);
  }
  CHECK(error <= tolerance(shape.dtype));
  for (const Isa isa : supported_isas()) {
    CHECK(same_bits(attend(isa, cache, head, run, q), expected));
    CHECK(same_bits(attend_in_parts(isa, cache, head, run, q), expected));
    for (int32_t i = 0; i < num_queries; ++i) {
      const size_t at = size_t(i) * query_floats;
      const std::vector<float> one(q.begin() + int64_t(at), q.begin() + int64_t(at + query_floats));
      const std::vector<float> want(expected.begin() + int64_t(at),
                                    expected.begin() + int64_t(at + query_floats));
      const int32_t position = run.position0 + i;
      if (isa == Isa::kScalar && i % 5 != 0) continue;  // slow
      CHECK(same_bits(attend(isa, cache, head, {position, 1}, one), want));
      CHECK(same_bits(attend_in_parts(isa, cache, head, {position, 1}, one), want));
    }
  }
}

TEST(attention_around_borders) {
  uint32_t seed = 1;
  for (const int32_t context : {1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 129, 511, 512, 513, 1024, 1025}) {
    for (const int32_t num_queries : {1, 2, 5, 16}) {
      for (const KvDtype dtype : kDtypes) {
        if (num_queries > context) continue;
        check_shape({.head_dim = 32, .group = 2, .context = context, .dtype = dtype}, num_queries, seed++);
      }
    }
  }
}

TEST(attention_windows) {
  uint32_t seed = 100;
  for (const int32_t window : {1, 2, 15, 16, 17, 64, 100, 511, 512, 513, 2000}) {
    for (const int32_t context : {1, 16, 40, 513, 600, 1100}) {
      for (const KvDtype dtype : kDtypes) {
        const Shape shape{.head_dim = 16, .group = 3, .context = context, .window = window, .dtype = dtype};
        check_shape(shape, std::min(context, 16), seed++);
      }
    }
  }
}

TEST(attention_head_dims_blocks_groups) {
  uint32_t seed = 200;
  for (const int32_t head_dim : {16, 48, 64, 80, 128, 256}) {
    for (const int32_t block_tokens : {16, 32, 64, 128, 512}) {
      Shape shape{.num_kv_heads = 2,
                  .head_dim = head_dim,
                  .block_tokens = block_tokens,
                  .group = 1 + int32_t(seed % 8),
                  .context = 150 + int32_t(seed % 37),
                  .softcap = seed % 2 == 0 ? 0.0F : 30.0F};
      for (const KvDtype dtype : kDtypes) {
        shape.dtype = dtype;
        check_shape(shape, 1 + int32_t(seed % 16), seed);
      }
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
    shape.dtype = kDtypes[i % 2];
    check_shape(shape, std::min(shape.context, pick(1, 16)), 1000 + i);
  }
}

// Later positions, in the same block and in the same tile, may hold anything; so may blocks before the
// window.
TEST(attention_sees_only_its_positions) {
  for (const KvDtype dtype : kDtypes) {
    Cache cache({.head_dim = 32, .group = 2, .context = 80, .window = 20, .dtype = dtype}, 5);
    const std::vector<float> q = random_queries(cache, 16);
    for (const Isa isa : supported_isas()) {
      const std::vector<float> before = attend(isa, cache, 0, {50, 16}, q);
      CHECK(std::isfinite(before[0]));
      const int32_t first_block = cache.table[0];
      cache.table[0] = -1000000;  // the window of position 50 starts in block 1
      for (int32_t position = 66; position < 80; ++position) {
        for (int32_t d = 0; d < 32; ++d) {
          const float bad = std::numeric_limits<float>::quiet_NaN();
          if (position % 2 == 0) cache.k[cache.row(position, 0) + size_t(d)] = bad;
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
}

// A query that is not finite gives NaN for itself only.
TEST(attention_of_a_broken_query) {
  for (const KvDtype dtype : kDtypes) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Cache cache({.head_dim = 32, .group = 2, .context = 100, .dtype = dtype}, 6);
      std::vector<float> q = random_queries(cache, 3);
      q[2 * 64 + 40] = bad;  // the last query's second head
      for (const Isa isa : supported_isas()) {
        const std::vector<float> out = attend(isa, cache, 0, {97, 3}, q);
        for (size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i >= 160));
      }
    }
  }
}

TEST(attention_large_scores) {
  for (const KvDtype dtype : kDtypes) {
    Cache cache({.head_dim = 64, .group = 1, .context = 700, .dtype = dtype}, 9);
    std::vector<float> q = random_queries(cache, 4);
    for (float& x : q) x *= 300.0F;
    const Run run{696, 4};
    const std::vector<float> expected = attend(Isa::kScalar, cache, 0, run, q);
    for (const float x : expected) CHECK(std::isfinite(x) && std::fabs(x) < 6.0F);
    for (const Isa isa : supported_isas()) CHECK(same_bits(attend(isa, cache, 0, run, q), expected));
  }
}

// A position of small, large or no K and V at all beside ordinary ones.
TEST(attention_q8_scales) {
  for (const float factor : {0.0F, 1e-7F, 1e-3F, 1e3F, 1e6F}) {
    Cache cache({.head_dim = 32, .group = 2, .context = 130, .dtype = KvDtype::kQ8}, 11);
    for (int32_t position = 60; position < 70; ++position) {
      for (size_t d = 0; d < 32; ++d) {
        cache.k[cache.row(position, 0) + d] *= std::min(factor, 10.0F);
        cache.v[cache.row(position, 0) + d] *= factor;
      }
      cache.write(position, Isa::kScalar);
    }
    const std::vector<float> q = random_queries(cache, 16);
    const Run run{114, 16};
    const std::vector<float> expected = attend(Isa::kScalar, cache, 0, run, q);
    CHECK(largest_error(cache, run, q, expected, 0) <= tolerance(KvDtype::kQ8) * std::max(1.0F, factor));
    for (const Isa isa : supported_isas()) CHECK(same_bits(attend(isa, cache, 0, run, q), expected));
  }
}

}  // namespace
}  // namespace plait

TEST_MAIN()
