// Speed of attention on one core, in CPU time of the thread: ./attention_bench [isa]
// Prefill: 16 queries of a group of heads, in multiply-adds. Decode: one query of each of many sequences, so
// that no KV is in the caches, blocks in random order: time of one call, ns per position, and bytes of KV.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
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
  KvDtype dtype = KvDtype::kF16;
  int32_t num_seqs = 1;
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Bench {
  explicit Bench(const Setup& s, int32_t num_layers, int32_t num_kv_heads) : setup(s) {
    layout = {.num_layers = num_layers,
              .num_kv_heads = num_kv_heads,
              .head_dim = s.head_dim,
              .block_tokens = s.block_tokens,
              .dtype = s.dtype};
    blocks_of_seq = (s.context + s.block_tokens - 1) / s.block_tokens;
    const auto num_blocks = static_cast<size_t>(blocks_of_seq) * static_cast<size_t>(s.num_seqs);
    // Huge pages where the system gives them, as for a real pool.
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t num_bytes = (layout.block_bytes() * num_blocks + kHugePage - 1) / kHugePage * kHugePage;
    pool.reset(static_cast<uint16_t*>(std::aligned_alloc(kHugePage, num_bytes)));
    madvise(pool.get(), num_bytes, MADV_HUGEPAGE);
    std::mt19937 rng(1);
    // f16 of 2^-4 to 2^-3 of both signs; as signed bytes with such scales it is as good.
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
      const double begin = thread_seconds();
      int calls = 0;
      double seconds = 0;
      while (seconds < 0.04) {
        for (args.layer = 0; args.layer < layout.num_layers; ++args.layer) {
          for (int32_t seq = 0; seq < setup.num_seqs; ++seq) calls += attend(isa, seq, args);
        }
        seconds = thread_seconds() - begin;
      }
      best = std::min(best, seconds / calls);
    }
    return best;
  }

  const int32_t* table_of(int32_t seq) const { return table.data() + int64_t{seq} * blocks_of_seq; }

  // All kv heads of one layer, cut as plan/runner_attention.cc does; returns how many there are.
  int attend(Isa isa, int32_t seq, AttentionArgs& args) {
    args.block_table = table_of(seq);
    const int32_t num_partitions = (setup.context + kPartition - 1) / kPartition;
    const bool is_cut = setup.num_queries == 1 && num_partitions > 1;
    const size_t partial_floats = static_cast<size_t>(setup.group * (2 + setup.head_dim));
    partials.resize(partial_floats * static_cast<size_t>(num_partitions * layout.num_kv_heads));
    for (int32_t partition = 0; partition < (is_cut ? num_partitions : 1); ++partition) {
      for (args.kv_head = 0; args.kv_head < layout.num_kv_heads; ++args.kv_head) {
        const auto index = static_cast<size_t>(args.kv_head * num_partitions + partition);
        args.next = next_range(args, seq, is_cut ? partition : -1, num_partitions);
        if (is_cut) {
          attention_partial_kernel(isa)(args, partition, &partials[index * partial_floats]);
        } else {
          attention_kernel(isa)(args);
        }
      }
    }
    for (int32_t head = 0; is_cut && head < layout.num_kv_heads; ++head) {
      const auto index = static_cast<size_t>(head * num_partitions);
      attention_merge_kernel(isa)(&partials[index * partial_floats], num_partitions, setup.group,
                                  setup.head_dim, out.data());
    }
    return layout.num_kv_heads;
  }

  // Of the next head, else of the next partition, else of the next sequence.
  KvRange next_range(const AttentionArgs& args, int32_t seq, int32_t partition,
                     int32_t num_partitions) const {
    AttentionArgs next = args;
    next.kv_head = (args.kv_head + 1) % layout.num_kv_heads;
    if (next.kv_head > 0) return range_of(next, partition);
    if (partition >= 0 && partition + 1 < num_partitions) return range_of(next, partition + 1);
    if (seq + 1 == setup.num_seqs) return {};
    next.block_table = table_of(seq + 1);
    return range_of(next, partition >= 0 ? 0 : -1);
  }

  Setup setup;
  KvLayout layout;
  int32_t blocks_of_seq = 0;
  std::unique_ptr<uint16_t, decltype([](uint16_t* p) { std::free(p); })> pool;
  std::vector<int32_t> table;
  std::vector<float> q, out, partials;
  std::vector<std::byte> scratch;
};

const char* name_of(KvDtype dtype) { return dtype == KvDtype::kF16 ? "f16" : "q8 "; }

void prefill(Isa isa, const Setup& s) {
  Bench bench(s, 1, 1);
  const double seen = s.context - (s.num_queries - 1) / 2.0;
  const double macs = 2.0 * seen * s.num_queries * s.group * s.head_dim;
  std::printf("prefill %s head_dim %3d group %d context %5d: %6.1f GMAC/s\n", name_of(s.dtype), s.head_dim,
              s.group, s.context, macs / bench.time(isa) * 1e-9);
}

// One query over KV that stays in the caches.
void decode_hot(Isa isa, Setup s) {
  s.num_queries = 1;
  Bench bench(s, 1, 1);
  const double seconds = bench.time(isa);
  std::printf("cached  %s head_dim %3d group %d context %5d: %7.2f us %6.2f ns/position\n", name_of(s.dtype),
              s.head_dim, s.group, s.context, seconds * 1e6, seconds * 1e9 / s.context);
}

// 30 layers of 3 kv heads, with at least 128 MB of KV.
void decode(Isa isa, Setup s) {
  s.num_queries = 1;
  s.num_seqs = std::max(1, 128'000'000 / (90 * 4 * s.context * s.head_dim));
  Bench bench(s, 30, 3);
  const double bytes = static_cast<double>(bench.layout.block_bytes()) / 90.0 / s.block_tokens * s.context;
  const double seconds = bench.time(isa);
  std::printf("decode  %s head_dim %3d group %d context %5d: %7.2f us %6.2f ns/position %5.1f GB/s\n",
              name_of(s.dtype), s.head_dim, s.group, s.context, seconds * 1e6, seconds * 1e9 / s.context,
              bytes / seconds * 1e-9);
}

int run(int argc, char** argv) {
  const bool is_scalar = argc > 1 && std::strcmp(argv[1], "scalar") == 0;
  const Isa isa = is_scalar ? Isa::kScalar : choose_isa().isa;
  std::printf("isa %s\n", isa_name(isa));
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kQ8}) {
    for (const int32_t context : {128, 512, 4096}) prefill(isa, {.context = context, .dtype = dtype});
    prefill(isa, {.head_dim = 256, .group = 4, .context = 2048, .dtype = dtype});
  }
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kQ8}) {
    for (const int32_t group : {1, 3}) decode_hot(isa, {.group = group, .dtype = dtype});
    for (const int32_t context : {32, 140, 1000, 4000}) decode(isa, {.context = context, .dtype = dtype});
    decode(isa, {.group = 1, .context = 4000, .dtype = dtype});
    decode(isa, {.head_dim = 128, .group = 4, .context = 2000, .dtype = dtype});
    decode(isa, {.head_dim = 256, .group = 4, .context = 1000, .dtype = dtype});
  }
  return 0;
}

}  // namespace
}  // namespace plait

int main(int argc, char** argv) { return plait::run(argc, argv); }
