// The matrix product of one ISA: PLAIT_ISA::matmul. Included by matmul_<isa>.cc, once, with
//   PLAIT_ISA       the namespace that everything here goes to
//   PLAIT_TARGET    the target features, a string
//   PLAIT_HAS_512   1 when they include AVX-512 F, BW, VL and DQ
//   PLAIT_HAS_VNNI  1 when they include AVX-512 VNNI as well
// Every function carries the target itself, so no file needs -mavx2 and no shared inline function is ever
// compiled for a CPU that another one lacks.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands inside its own AVX-512 intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstring>

#include "cpu/isa.h"
#include "kernels/matmul/act_tile.h"
#include "kernels/matmul/matmul_kernels.h"
#include "kernels/matmul/packed_layout.h"
#include "kernels/matmul/walk.h"

#define PLAIT_FN __attribute__((target(PLAIT_TARGET)))
#define PLAIT_INLINE __attribute__((target(PLAIT_TARGET), always_inline)) inline

#include "kernels/matmul/vec256-inl.h"
#if PLAIT_HAS_512
#include "kernels/matmul/vec512-inl.h"
#endif
#include "kernels/matmul/part-inl.h"

namespace plait::PLAIT_ISA {
namespace {

#if PLAIT_HAS_512
using Wide = V512;
#else
using Wide = V256;
#endif

constexpr int32_t kLine = 64;  // bytes of a cache line

// Weights and activations that stay in the first-level cache.
constexpr size_t kFirstLevelBytes = size_t{20} << 10;

}  // namespace
}  // namespace plait::PLAIT_ISA

#include "kernels/matmul/float-inl.h"

namespace plait::PLAIT_ISA {
namespace {

// Reading two groups side by side confuses the prefetchers of the CPU, whose streams cross within a page, and
// leaves a third of the bandwidth. So while a pair is multiplied, the next one is fetched from end to end,
// two records for each two that are read: to the first-level cache if `is_small` says that two pairs have
// room there, otherwise to the second, and what is read soon from there to the first. The pair after the last
// is fetched as well: it is the start of the work that follows, here or on another core that shares a cache.
template <int32_t kNumBytes>
PLAIT_INLINE void fetch_next_pair(const std::byte* first, const std::byte* p, size_t step, bool is_small) {
  constexpr int32_t kSoon = 1024;
  const std::byte* next = first + 2 * step + 2 * (p - first);
  if (is_small) {
    for (int32_t b = 0; b < 2 * kNumBytes; b += kLine) _mm_prefetch(next + b, _MM_HINT_T0);
    return;
  }
  for (int32_t b = 0; b < 2 * kNumBytes; b += kLine) _mm_prefetch(next + b, _MM_HINT_T1);
  for (int32_t b = 0; b < kNumBytes; b += kLine) {
    _mm_prefetch(p + kSoon + b, _MM_HINT_T0);
    _mm_prefetch(p + step + kSoon + b, _MM_HINT_T0);
  }
}

// One stream of weights that is read slowly, since each part is multiplied with many tokens, makes the CPU
// fetch too little ahead. With few tokens it depends on the CPU (fetches_enough_by_itself()): most read a
// tenth to a fifth faster when they are told.
template <int kTokens>
constexpr bool kIsSlow = kTokens > 4;

// CPUs without AVX-512 (measured: Zen 3) read another fifth faster from two places than from one: so many
// misses of one stream fit into the first-level cache's queue, and what the CPU itself fetches comes on top
// for each stream. Only for a single token, where the time is that of reading.
template <int kTokens>
constexpr int kStreams = !PLAIT_HAS_512 && kTokens == 1 ? 2 : 1;

// How far ahead, and whether to the second-level cache: the longer way of those with AVX-512 (measured: Zen
// 5) is more than the first-level cache keeps open misses for.
template <int kTokens>
constexpr size_t kFar = kIsSlow<kTokens>        ? 4096
                        : PLAIT_HAS_512         ? 8192
                        : kStreams<kTokens> > 1 ? 1280
                                                : 1536;
template <int kTokens>
constexpr bool kIsFarToSecond = PLAIT_HAS_512 && !kIsSlow<kTokens>;

template <int32_t kNumBytes, bool kToSecond>
PLAIT_INLINE void fetch(const std::byte* p) {
  for (int32_t b = 0; b < kNumBytes; b += kLine) _mm_prefetch(p + b, kToSecond ? _MM_HINT_T1 : _MM_HINT_T0);
}

// The same of the lower bits that are kept apart.
template <class V, int kTokens, bool kIsTold>
PLAIT_INLINE void fetch_low(const std::byte* first, const LowPart& low) {
  if constexpr (V::kGroups == 2) {
    const std::byte* next = first + 2 * low.step + 2 * (low.p - first);
    for (int32_t b = 0; b < 2 * kLowPartBytes; b += kLine) _mm_prefetch(next + b, _MM_HINT_T0);
  } else if constexpr (kIsTold) {
    fetch<kLowPartBytes, kIsFarToSecond<kTokens>>(low.p + kFar<kTokens>);
  }
}

// Where the streams of one call stand: `bytes_apart` and, in the output, `rows_apart` from one to the next;
// each goes on `bytes_to_next` behind the end of this call's columns.
struct Streams {
  size_t bytes_apart = 0;
  size_t low_apart = 0;
  int64_t rows_apart = 0;
  size_t bytes_to_next = 0;
};

// Codes that take work to unpack serve two full tiles once they are in registers. With AVX-512 not measured.
template <PackedKind K>
constexpr bool kTakesTwoTiles = !PLAIT_HAS_512 && K != PackedKind::kS8;

// kNumStreams vectors of rows times kNumTiles tiles of kTokens tokens over all columns; codes go from memory
// to registers, each byte is read once. kIsTold: what lies ahead is fetched. out: token t at t * out_stride.
template <class V, PackedKind K, int kTokens, int kNumStreams, bool kIsTold, int kNumTiles = 1>
PLAIT_FN void multiply(const Groups& groups, size_t step, int32_t cols, const ActTile& tile, float* out,
                       int64_t out_stride, const Streams& streams) {
  const std::byte* first = groups.records;
  [[maybe_unused]] LowPart low{groups.low, low_group_bytes(K, cols)};
  constexpr RecordShape kShape = record_shape(K);
  constexpr int32_t kReadBytes = kShape.head_bytes() + kShape.part_bytes();
  constexpr int kAllTokens = kNumTiles * kTokens;
  typename V::Float acc[kNumStreams][kAllTokens];
  typename V::Float zero = V::zero_float();
  PLAIT_PIN(zero);  // or GCC calls for a memset
  for (int s = 0; s < kNumStreams; ++s) {
    for (int t = 0; t < kAllTokens; ++t) acc[s][t] = zero;
  }
  const size_t act_step = static_cast<size_t>(tile.stored) * kActBytes;
  [[maybe_unused]] const size_t tile_step = act_step * static_cast<size_t>(cols / kBlock);
  ActRecord record_act = tile.record(0);
  [[maybe_unused]] const bool is_small = 4 * step + tile_step <= kFirstLevelBytes;
  [[maybe_unused]] size_t left = group_bytes(K, cols);
  const std::byte* record = first;
  for (int32_t col = 0; col < cols; col += kShape.elements, record += kShape.bytes()) {
    ActRecord act = record_act;
    [[maybe_unused]] const size_t far = kFar<kTokens> + (left > kFar<kTokens> ? 0 : streams.bytes_to_next);
    left -= static_cast<size_t>(kShape.bytes());
    for (int s = 0; s < kNumStreams; ++s) {
      act = record_act;
      const std::byte* p = record + static_cast<size_t>(s) * streams.bytes_apart;
      const Head<V> head = load_head<V, K>(p, step);
      for (int32_t i = 0; i < kShape.num_parts(); ++i, p += kShape.part_bytes()) {
        if constexpr (V::kGroups == 2) fetch_next_pair<kReadBytes>(first, p, step, is_small);
        if constexpr (V::kGroups == 1 && kIsTold) {
          fetch<kReadBytes, kIsFarToSecond<kTokens>>(p + (kNumStreams > 1 ? far : kFar<kTokens>));
        }
        LowPart low_part = low;
        if constexpr (K == PackedKind::kS8Apart) {
          low_part.p += static_cast<size_t>(s) * streams.low_apart;
          fetch_low<V, kTokens, kIsTold>(groups.low, low_part);
        }
        Part<V> part;
        load_part<V, K>(head, p + kShape.head_bytes(), step, low_part, part);
        add_part<V, K, kTokens>(head, part, act, acc[s]);
        if constexpr (kNumTiles == 2) {
          const ActRecord second = act + tile_step;
          add_part<V, K, kTokens>(head, part, second, acc[s] + kTokens);
        }
        act = act + act_step;
      }
    }
    record_act = act;
    if constexpr (K == PackedKind::kS8Apart) low.p += kLowPartBytes;
  }
  for (int s = 0; s < kNumStreams; ++s) {
    for (int t = 0; t < kAllTokens; ++t) {
      V::store(out + s * streams.rows_apart + t * out_stride, acc[s][t]);
    }
  }
}

// From so many tokens on, two groups side by side are faster than one after the other. Below, memory is what
// limits, and one stream of weights reads fastest.
constexpr int tokens_for_pairs(PackedKind kind) { return kind == PackedKind::kS8 ? 4 : 2; }

// All rows of one range for one tile. kIsTold: what lies ahead is fetched for few tokens, too.
template <PackedKind K, int kTokens, bool kIsTold>
void multiply_tile(const Groups& groups, int32_t num_groups, int32_t cols, const ActTile& tile, float* out,
                   int64_t out_stride) {
  const size_t step = group_bytes(K, cols);
  const auto at = [&](int32_t g) { return groups.at(g, K, cols); };
  constexpr bool kFetches = kIsTold || kIsSlow<kTokens>;
  int32_t g = 0;
  if constexpr (Wide::kGroups == 2 && kTokens >= tokens_for_pairs(K)) {
    for (; g + 2 <= num_groups; g += 2) {
      multiply<Wide, K, kTokens, 1, kFetches>(at(g), step, cols, tile, out + g * kRowGroup, out_stride, {});
    }
  }
  if constexpr (kStreams<kTokens> > 1) {
    // Each stream is a run of neighbouring groups; the ranges that follow this one in memory will be read the
    // same way, most likely by this thread.
    const int32_t run = num_groups / kStreams<kTokens>;
    Streams streams{static_cast<size_t>(run) * step, static_cast<size_t>(run) * low_group_bytes(K, cols),
                    int64_t{run} * kRowGroup, 0};
    for (; g < run; ++g) {
      if (g + 1 == run) streams.bytes_to_next = static_cast<size_t>(num_groups - run) * step;
      multiply<V256, K, kTokens, kStreams<kTokens>, kFetches>(at(g), step, cols, tile, out + g * kRowGroup,
                                                              out_stride, streams);
    }
    g = run * kStreams<kTokens>;
  }
  for (; g < num_groups; ++g) {
    multiply<V256, K, kTokens, 1, kFetches>(at(g), step, cols, tile, out + g * kRowGroup, out_stride, {});
  }
}

template <PackedKind K>
void multiply_two_tiles(const Groups& groups, int32_t num_groups, int32_t cols, const ActTile& tile,
                        float* out, int64_t out_stride) {
  const size_t step = group_bytes(K, cols);
  for (int32_t g = 0; g < num_groups; ++g) {
    multiply<V256, K, kTileTokens, 1, true, 2>(groups.at(g, K, cols), step, cols, tile, out + g * kRowGroup,
                                               out_stride, {});
  }
}

template <PackedKind K>
constexpr TileFn two_tiles_fn() {
  if constexpr (kTakesTwoTiles<K>) return multiply_two_tiles<K>;
  return nullptr;
}

template <PackedKind K, bool kIsTold>
constexpr TileFns kTileFns = {
    {multiply_tile<K, 1, kIsTold>, multiply_tile<K, 2, kIsTold>, multiply_tile<K, 3, kIsTold>,
     multiply_tile<K, 4, kIsTold>, multiply_tile<K, 5, true>, multiply_tile<K, 6, true>,
     multiply_tile<K, 7, true>, multiply_tile<K, 8, true>},
    two_tiles_fn<K>()};

template <bool kIsTold>
const TileFns* tile_fns(PackedKind kind) {
  switch (kind) {
    case PackedKind::kU4:
      return &kTileFns<PackedKind::kU4, kIsTold>;
    case PackedKind::kU4Min:
      return &kTileFns<PackedKind::kU4Min, kIsTold>;
    case PackedKind::kU5:
      return &kTileFns<PackedKind::kU5, kIsTold>;
    case PackedKind::kU5Min:
      return &kTileFns<PackedKind::kU5Min, kIsTold>;
    case PackedKind::kS8:
      return &kTileFns<PackedKind::kS8, kIsTold>;
    case PackedKind::kCode4:
      return &kTileFns<PackedKind::kCode4, kIsTold>;
    case PackedKind::kU2K:
      return &kTileFns<PackedKind::kU2K, kIsTold>;
    case PackedKind::kU3K:
      return &kTileFns<PackedKind::kU3K, kIsTold>;
    case PackedKind::kU4K:
      return &kTileFns<PackedKind::kU4K, kIsTold>;
    case PackedKind::kU5K:
      return &kTileFns<PackedKind::kU5K, kIsTold>;
    case PackedKind::kU6K:
      return &kTileFns<PackedKind::kU6K, kIsTold>;
    case PackedKind::kCode4K:
      return &kTileFns<PackedKind::kCode4K, kIsTold>;
    case PackedKind::kS8Apart:
      return &kTileFns<PackedKind::kS8Apart, kIsTold>;
    case PackedKind::kU6:
      return &kTileFns<PackedKind::kU6, kIsTold>;
    case PackedKind::kF16:
    case PackedKind::kBF16:
    case PackedKind::kF32:
      break;
  }
  return nullptr;
}

}  // namespace

void matmul(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
            float* out, int64_t out_stride) {
  if (is_float_kind(w.kind)) return matmul_float(w, acts, row0, row1, t0, t1, out, out_stride);
#if PLAIT_HAS_512
  const TileFns* fns = fetches_enough_by_itself() ? tile_fns<false>(w.kind) : tile_fns<true>(w.kind);
#else
  const TileFns* fns = tile_fns<true>(w.kind);
#endif
  walk_tiles(*fns, w, acts, row0, row1, t0, t1, out, out_stride);
}

}  // namespace plait::PLAIT_ISA
