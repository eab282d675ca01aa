// Speed of attention on one core: ./attention_bench [scalar|avx2]
// Prefill: 16 queries of a group of heads, in multiply-adds. Decode: one query over KV too large for the
// caches, blocks in random order, in bytes of KV.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cpu/isa.h"
#include "kernels/attention/attention.h"

namespace plait {
namespace {

struct Setup {
  int32_t head_dim = 64;
  int32_t group = 3;
  int32_t context = 512;
  int32_t num_queries = 16;
  int32_t block_tokens = 16;
};

struct Bench {
  explicit Bench(const Setup& s, int32_t num_layers, int32_t num_kv_heads) : setup(s) {
    layout = {.num_layers = num_layers,
              .num_kv_heads = num_kv_heads,
              .head_dim = s.head_dim,
              .block_tokens = s.block_tokens};
    const auto num_blocks = static_cast<size_t>((s.context + s.block_tokens - 1) / s.block_tokens);
    // Huge pages where the system gives them, as for a real pool.
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t num_bytes = (layout.block_bytes() * num_blocks + kHugePage - 1) / kHugePage * kHugePage;
    pool.reset(static_cast<uint16_t*>(std::aligned_alloc(kHugePage, num_bytes)));
    madvise(pool.get(), num_bytes, MADV_HUGEPAGE);
    std::mt19937 rng(1);
    for (size_t i = 0; i < num_bytes / 2; ++i)
      pool.get()[i] = static_cast<uint16_t>(0x2C00 + (rng() & 0x83FF));
    table.resize(num_blocks);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), rng);
    const auto floats = static_cast<size_t>(s.num_queries * s.group * s.head_dim);
    q.resize(floats, 0.5F);
    out.resize(floats);
    scratch.resize(attention_scratch_bytes(layout, s.group, s.num_queries) + 64);
  }

  // Seconds of one call, the best of several; each call takes the next layer and head.
  double time(Isa isa) {
    AttentionArgs args;
    args.layout = &layout;
    args.pool = reinterpret_cast<const std::byte*>(pool.get());
    args.block_table = table.data();
    args.group = setup.group;
    args.q = q.data();
    args.q_stride = int64_t{setup.group} * setup.head_dim;
    args.num_queries = setup.num_queries;
    args.position0 = setup.context - setup.num_queries;
    args.scale = 0.125F;
    args.out = out.data();
    args.out_stride = args.q_stride;
    void* aligned = scratch.data();
    size_t space = scratch.size();
    args.scratch = static_cast<std::byte*>(std::align(64, 64, aligned, space));
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      int calls = 0;
      double seconds = 0;
      while (seconds < 0.04) {
        for (args.layer = 0; args.layer < layout.num_layers; ++args.layer) {
          for (args.kv_head = 0; args.kv_head < layout.num_kv_heads; ++args.kv_head) {
            attention_kernel(isa)(args);
            ++calls;
          }
        }
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      }
      best = std::min(best, seconds / calls);
    }
    return best;
  }

  Setup setup;
  KvLayout layout;
  std::unique_ptr<uint16_t, decltype([](uint16_t* p) { std::free(p); })> pool;
  std::vector<int32_t> table;
  std::vector<float> q, out;
  std::vector<std::byte> scratch;
};

void prefill(Isa isa, const Setup& s) {
  Bench bench(s, 1, 1);
  const double seen = s.context - (s.num_queries - 1) / 2.0;
  const double macs = 2.0 * seen * s.num_queries * s.group * s.head_dim;
  std::printf("prefill head_dim %3d group %d context %5d: %6.1f GFMA/s\n", s.head_dim, s.group, s.context,
              macs / bench.time(isa) * 1e-9);
}

void decode(Isa isa, const Setup& s) {
  Bench bench(s, 30, 3);
  const double bytes = 4.0 * s.context * s.head_dim;
  std::printf("decode  head_dim %3d group %d context %5d: %6.1f GB/s\n", s.head_dim, s.group, s.context,
              bytes / bench.time(isa) * 1e-9);
}

int run(int argc, char** argv) {
  const bool is_scalar = argc > 1 && std::strcmp(argv[1], "scalar") == 0;
  const Isa isa = is_scalar ? Isa::kScalar : choose_isa().isa;
  std::printf("isa %s\n", isa_name(isa));
  for (const int32_t context : {128, 512, 4096}) prefill(isa, {.context = context});
  prefill(isa, {.head_dim = 128, .group = 4, .context = 2048});
  prefill(isa, {.head_dim = 256, .group = 4, .context = 2048});
  for (const int32_t context : {128, 1000, 4000}) decode(isa, {.context = context, .num_queries = 1});
  decode(isa, {.group = 1, .context = 4000, .num_queries = 1});
  decode(isa, {.head_dim = 128, .group = 4, .context = 2000, .num_queries = 1});
  decode(isa, {.head_dim = 256, .group = 4, .context = 1000, .num_queries = 1});
  return 0;
}

}  // namespace
}  // namespace plait

int main(int argc, char** argv) { return plait::run(argc, argv); }
