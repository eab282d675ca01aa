#include "bench/attention_timer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "kernels/matmul/random_blocks.h"

namespace plait {

namespace {

// Values of K, V and queries are taken from a pool of this many, at ever new places.
constexpr int32_t kNumRandom = 1 << 16;

std::vector<float> random_values(uint64_t seed) {
  std::vector<float> values(kNumRandom);
  SplitMix64 random(seed);
  for (float& value : values) value = random.uniform();
  return values;
}

void check_sizes(const KvLayout& layout, const AttentionShape& shape) {
  const bool is_right = layout.num_layers > 0 && layout.num_kv_heads > 0 && layout.head_dim > 0 &&
                        layout.head_dim % 16 == 0 && layout.head_dim <= kNumRandom / 2 &&
                        layout.block_tokens > 0 && layout.block_tokens % 16 == 0 &&
                        kPartition % layout.block_tokens == 0 && shape.group > 0 && shape.num_queries > 0 &&
                        shape.context >= shape.num_queries && shape.window >= 0;
  if (!is_right) throw Error(ErrorCode::kInvalidArgument, "sizes that the attention kernels do not take");
}

}  // namespace

AttentionTimer::AttentionTimer(Rig& rig, const KvLayout& layout, const AttentionShape& shape,
                               size_t cold_bytes)
    : rig_(rig), layout_(layout), shape_(shape), members_(static_cast<size_t>(rig.num_threads())) {
  check_sizes(layout, shape);
  const size_t blocks_per_sequence =
      (static_cast<size_t>(shape.context) + static_cast<size_t>(layout.block_tokens) - 1) /
      static_cast<size_t>(layout.block_tokens);
  const size_t layer_bytes =
      blocks_per_sequence * layout.block_bytes() / static_cast<size_t>(layout.num_layers);
  const size_t num_units = std::max<size_t>(2, (cold_bytes + layer_bytes - 1) / layer_bytes);
  layout_.num_layers = static_cast<int32_t>(std::min(num_units, static_cast<size_t>(layout.num_layers)));
  const auto layers = static_cast<size_t>(layout_.num_layers);
  sequences_.resize((num_units + layers - 1) / layers);

  const size_t num_blocks = sequences_.size() * blocks_per_sequence;
  pool_ = Memory(num_blocks * layout_.block_bytes());
  std::vector<int32_t> order(num_blocks);
  std::iota(order.begin(), order.end(), 0);
  SplitMix64 random(3);
  for (size_t i = num_blocks - 1; i > 0; --i) {
    std::swap(order[i], order[static_cast<size_t>(random.below(static_cast<int32_t>(i + 1)))]);
  }
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(s * blocks_per_sequence);
    sequences_[s].blocks.assign(begin, begin + static_cast<std::ptrdiff_t>(blocks_per_sequence));
  }
  fill();
  const int32_t group_cols = shape_.group * layout_.head_dim;
  const std::vector<float> values = random_values(5);
  q_.resize(static_cast<size_t>(shape_.num_queries) * static_cast<size_t>(layout_.num_kv_heads) *
            static_cast<size_t>(group_cols));
  for (size_t i = 0; i < q_.size(); ++i) q_[i] = values[i * 7 % kNumRandom];
  if (is_split()) {
    partials_.resize(
        static_cast<size_t>(this->num_units() * layout_.num_kv_heads * num_partitions() * partial_size()));
  }
  for (Member& member : members_) {
    member.tile.resize(static_cast<size_t>(kMaxQueriesPerTask) * static_cast<size_t>(group_cols));
    member.scratch = Memory(attention_scratch_bytes(layout_, shape_.group, kMaxQueriesPerTask));
  }
}

void AttentionTimer::fill() {
  const std::vector<float> values = random_values(4);
  const auto num_blocks = static_cast<int32_t>(pool_.size() / layout_.block_bytes());
  rig_.team().run(num_blocks, [&](int32_t block, int32_t) {
    std::byte* bytes = pool_.data() + static_cast<size_t>(block) * layout_.block_bytes();
    SplitMix64 random(static_cast<uint64_t>(block));
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
      for (int32_t head = 0; head < layout_.num_kv_heads; ++head) {
        for (int32_t slot = 0; slot < layout_.block_tokens; ++slot) {
          const float* k = values.data() + random.below(kNumRandom - layout_.head_dim);
          const float* v = values.data() + random.below(kNumRandom - layout_.head_dim);
          rig_.kernels().kv_write(layout_, bytes, layer, head, slot, k, v);
        }
      }
    }
  });
}

double AttentionTimer::macs() const {
  double seen = 0;
  for (int32_t i = 0; i < shape_.num_queries; ++i) {
    const int32_t sees = shape_.context - shape_.num_queries + i + 1;
    seen += shape_.window > 0 ? std::min(sees, shape_.window) : sees;
  }
  return 2.0 * seen * layout_.num_kv_heads * shape_.group * layout_.head_dim;
}

double AttentionTimer::kv_bytes() const {
  const int32_t longest = shape_.window > 0 ? shape_.window + shape_.num_queries - 1 : shape_.context;
  const double per_position =
      static_cast<double>(layout_.block_bytes()) / (double{1} * layout_.num_layers * layout_.block_tokens);
  return per_position * std::min(longest, shape_.context);
}

AttentionArgs AttentionTimer::args_of(int64_t unit, int32_t head, int32_t tile) const {
  const int32_t group_cols = shape_.group * layout_.head_dim;
  const int32_t query = tile * kMaxQueriesPerTask;
  AttentionArgs args;
  args.layout = &layout_;
  args.pool = pool_.data();
  args.block_table = sequences_[static_cast<size_t>(unit / layout_.num_layers)].blocks.data();
  args.layer = static_cast<int32_t>(unit % layout_.num_layers);
  args.kv_head = head;
  args.group = shape_.group;
  args.q_stride = int64_t{layout_.num_kv_heads} * group_cols;
  args.q = q_.data() + query * args.q_stride + int64_t{head} * group_cols;
  args.num_queries = std::min(kMaxQueriesPerTask, shape_.num_queries - query);
  args.position0 = shape_.context - shape_.num_queries + query;
  args.window = shape_.window;
  args.scale = shape_.scale;
  args.softcap = shape_.softcap;
  return args;
}

void AttentionTimer::attend(int64_t first, int64_t count, float* out) {
  const int32_t num_heads = layout_.num_kv_heads;
  const int32_t group_cols = shape_.group * layout_.head_dim;
  const int32_t per_head = is_split() ? num_partitions() : num_tiles();
  const int32_t per_unit = num_heads * per_head;
  const auto partials_of = [&](int64_t unit, int32_t head) {
    return partials_.data() + (unit * num_heads + head) * num_partitions() * partial_size();
  };
  rig_.team().run(static_cast<int32_t>(count) * per_unit, [&](int32_t chunk, int32_t member) {
    const int64_t unit = (first + chunk / per_unit) % num_units();
    const int32_t part = chunk % per_unit / num_heads;
    const int32_t head = chunk % num_heads;
    Member& mine = members_[static_cast<size_t>(member)];
    AttentionArgs args = args_of(unit, head, is_split() ? 0 : part);
    args.scratch = mine.scratch.data();
    args.out = mine.tile.data();
    args.out_stride = group_cols;
    if (is_split()) {
      rig_.kernels().attention_partial(args, part, partials_of(unit, head) + part * partial_size());
      return;
    }
    if (out != nullptr) {
      args.out = out + part * kMaxQueriesPerTask * args.q_stride + int64_t{head} * group_cols;
      args.out_stride = args.q_stride;
    }
    rig_.kernels().attention(args);
  });
  if (!is_split()) return;
  rig_.team().run(static_cast<int32_t>(count) * num_heads, [&](int32_t chunk, int32_t member) {
    const int64_t unit = (first + chunk / num_heads) % num_units();
    const int32_t head = chunk % num_heads;
    float* to =
        out != nullptr ? out + int64_t{head} * group_cols : members_[static_cast<size_t>(member)].tile.data();
    rig_.kernels().attention_merge(partials_of(unit, head), num_partitions(), shape_.group, layout_.head_dim,
                                   to);
  });
}

// First and last kv head, first, a middle and the last tile of queries.
std::string AttentionTimer::check(int64_t unit) {
  const int32_t group_cols = shape_.group * layout_.head_dim;
  const int64_t stride = int64_t{layout_.num_kv_heads} * group_cols;
  const Memory room(static_cast<size_t>(shape_.num_queries * stride) * sizeof(float));
  auto* out = reinterpret_cast<float*>(room.data());
  std::memset(out, 0xff, room.size());  // what is not written shows
  attend(unit, 1, out);
  Member& mine = members_.front();
  for (const int32_t head : {0, layout_.num_kv_heads - 1}) {
    for (const int32_t tile : {0, num_tiles() / 2, num_tiles() - 1}) {
      AttentionArgs args = args_of(unit, head, tile);
      args.scratch = mine.scratch.data();
      args.out = mine.tile.data();
      args.out_stride = group_cols;
      kernel_table(Isa::kScalar).attention(args);
      for (int32_t i = 0; i < args.num_queries; ++i) {
        const float* got = out + (tile * kMaxQueriesPerTask + i) * stride + int64_t{head} * group_cols;
        const float* want = args.out + i * group_cols;
        if (std::memcmp(got, want, sizeof(float) * static_cast<size_t>(group_cols)) == 0) continue;
        return "kv head " + std::to_string(head) + " of query " +
               std::to_string(tile * kMaxQueriesPerTask + i) + " differs from the scalar kernel's";
      }
    }
  }
  return "";
}

Timing AttentionTimer::run(int32_t repeats) {
  if (repeats < 1) throw Error(ErrorCode::kInvalidArgument, "nothing to time");
  Timing timing;
  for (const int64_t unit : {int64_t{0}, num_units() - 1}) {
    timing.difference = check(unit);
    if (!timing.difference.empty()) return timing;
  }
  timing.seconds = rig_.time_units(num_units(), repeats,
                                   [&](int64_t first, int64_t count) { attend(first, count, nullptr); });
  return timing;
}

}  // namespace plait
