// Attention of a step: its tasks (micro_batch.h), divided over a crew.
#include <algorithm>

#include "plan/runner.h"

namespace plait {

namespace {

// The first partition that the query at `position` sees something of.
int32_t first_partition(const AttentionOp& op, int32_t position) {
  return op.window > 0 ? std::max(0, position + 1 - op.window) / kPartition : 0;
}

// Into how many parts the query heads of a group are cut. Together they read keys and values once, so only
// where members of the crew would be idle otherwise: a few single queries of a model with few kv heads.
int32_t parts_of_groups(const MicroBatch& batch, const KvLayout& layout, int32_t group, int32_t num_workers) {
  const auto num_units = static_cast<int32_t>(batch.tasks.size()) * layout.num_kv_heads;
  if (num_units >= num_workers || layout.head_dim % kBlock != 0) return 1;
  const auto is_single = [](const AttentionTask& task) { return task.num_queries == 1; };
  if (!std::ranges::all_of(batch.tasks, is_single)) return 1;
  return std::min(group, (num_workers + num_units - 1) / num_units);
}

}  // namespace

// A chunk is a part of the query heads of a kv head of a task: by task, then head, then part.
struct Runner::AttentionChunks {
  int32_t num_kv_heads, group, num_parts;

  int32_t count(const MicroBatch& batch) const {
    return static_cast<int32_t>(batch.tasks.size()) * num_kv_heads * num_parts;
  }
  const AttentionTask& task(const MicroBatch& batch, int32_t chunk) const {
    return batch.tasks[static_cast<size_t>(chunk / num_parts / num_kv_heads)];
  }
  int32_t kv_head(int32_t chunk) const { return chunk / num_parts % num_kv_heads; }
  // Query heads of the group: [first(chunk), first(chunk) + size(chunk)).
  int32_t first(int32_t chunk) const { return begin_of(chunk % num_parts); }
  int32_t size(int32_t chunk) const { return begin_of(chunk % num_parts + 1) - first(chunk); }

 private:
  int32_t begin_of(int32_t part) const { return group * part / num_parts; }
};

void Runner::run_op(const AttentionOp& op, MicroBatch& batch, Crew& crew) {
  const int32_t num_kv_heads = plan_->kv.num_kv_heads;
  const int32_t group = op.num_heads / num_kv_heads;
  const AttentionChunks chunks{num_kv_heads, group,
                               parts_of_groups(batch, plan_->kv, group, crew.num_workers())};
  crew.run(chunks.count(batch), [&](int32_t chunk, int32_t member) {
    attend(op, batch, chunks, chunk, members_[static_cast<size_t>(member)]);
  });
  if (batch.merges.empty()) return;
  crew.run(static_cast<int32_t>(batch.merges.size()) * num_kv_heads, [&](int32_t chunk, int32_t member) {
    merge(op, batch, batch.merges[static_cast<size_t>(chunk / num_kv_heads)], chunk % num_kv_heads,
          members_[static_cast<size_t>(member)]);
  });
}

// What a member writes is not set.
AttentionArgs Runner::attention_args(const AttentionOp& op, const MicroBatch& batch,
                                     const AttentionChunks& chunks, int32_t chunk) const {
  const KvLayout& layout = plan_->kv;
  const AttentionTask& task = chunks.task(batch, chunk);
  AttentionArgs args;
  args.layout = &layout;
  args.pool = kv_->pool();
  args.block_table = step_->block_tables[static_cast<size_t>(task.seq)].data();
  args.layer = op.layer;
  args.kv_head = chunks.kv_head(chunk);
  args.group = chunks.size(chunk);
  args.q_stride = int64_t{op.num_heads} * layout.head_dim;
  const int32_t head = args.kv_head * chunks.group + chunks.first(chunk);
  args.q = batch.rows_of(op.q) + task.row0 * args.q_stride + int64_t{head} * layout.head_dim;
  args.num_queries = task.num_queries;
  args.position0 = batch.positions[static_cast<size_t>(task.row0)];
  args.window = op.window;
  args.scale = op.scale;
  args.softcap = op.softcap;
  return args;
}

void Runner::attend(const AttentionOp& op, MicroBatch& batch, const AttentionChunks& chunks, int32_t chunk,
                    Member& member) {
  const AttentionTask& task = chunks.task(batch, chunk);
  AttentionArgs args = attention_args(op, batch, chunks, chunk);
  if (task.partition >= 0 && task.partition < first_partition(op, args.position0)) return;
  args.out = member.tile.data();
  args.out_stride = int64_t{args.group} * plan_->kv.head_dim;
  args.scratch = member.attention.data();
  // The next chunk is this member's, too, unless its share ends here.
  if (chunk + 1 < chunks.count(batch)) {
    args.next =
        range_of(attention_args(op, batch, chunks, chunk + 1), chunks.task(batch, chunk + 1).partition);
  }
  if (task.partition >= 0) {
    float* partials = partials_of(op, batch, batch.merges[static_cast<size_t>(task.merge)], args.kv_head);
    kernels_.attention_partial(args, task.partition,
                               partials + task.partition * task.num_queries * partial_size(op) +
                                   chunks.first(chunk) * (partial_size(op) / chunks.group));
    return;
  }
  kernels_.attention(args);
  quantize_tile(batch.acts_of(op.out), task.row0, task.num_queries,
                args.kv_head * chunks.group + chunks.first(chunk), args.group, args.out);
}

// The partial results of a tile and kv head, in rising order of their partitions.
float* Runner::partials_of(const AttentionOp& op, MicroBatch& batch, const AttentionMerge& merge,
                           int32_t head) {
  const int64_t index = int64_t{merge.first_partial} * plan_->kv.num_kv_heads +
                        int64_t{head} * merge.num_partials * merge.num_queries;
  return batch.partials.data() + index * partial_size(op);
}

int64_t Runner::partial_size(const AttentionOp& op) const {
  return int64_t{op.num_heads / plan_->kv.num_kv_heads} * (2 + plan_->kv.head_dim);
}

void Runner::merge(const AttentionOp& op, MicroBatch& batch, const AttentionMerge& merge, int32_t head,
                   Member& member) {
  const int32_t group = op.num_heads / plan_->kv.num_kv_heads;
  const int32_t first = first_partition(op, batch.positions[static_cast<size_t>(merge.row0)]);
  float* out = member.tile.data();
  kernels_.attention_merge(partials_of(op, batch, merge, head) + first * merge.num_queries * partial_size(op),
                           merge.num_partials - first, merge.num_queries * group, plan_->kv.head_dim, out);
  quantize_tile(batch.acts_of(op.out), merge.row0, merge.num_queries, head * group, group, out);
}

// Outputs of query heads [head0, head0 + num_heads), [num_queries][num_heads * head_dim].
void Runner::quantize_tile(const Acts& out, int32_t row0, int32_t num_queries, int32_t head0,
                           int32_t num_heads, const float* tile) {
  const int32_t head_dim = plan_->kv.head_dim;
  for (int32_t i = 0; i < num_queries; ++i) {
    kernels_.quantize(tile + int64_t{i} * num_heads * head_dim, row0 + i, head0 * head_dim,
                      (head0 + num_heads) * head_dim, out);
  }
}

}  // namespace plait
