// Attention of a step: its tasks (micro_batch.h), divided over a crew.
#include <algorithm>

#include "plan/runner.h"

namespace plait {

namespace {

// The first partition that the query at `position` sees something of.
int32_t first_partition(const AttentionOp& op, int32_t position) {
  return op.window > 0 ? std::max(0, position + 1 - op.window) / kPartition : 0;
}

}  // namespace

void Runner::run_op(const AttentionOp& op, MicroBatch& batch, Crew& crew) {
  const int32_t num_kv_heads = plan_->kv.num_kv_heads;
  crew.run(static_cast<int32_t>(batch.tasks.size()) * num_kv_heads, [&](int32_t chunk, int32_t member) {
    attend(op, batch, chunk, members_[static_cast<size_t>(member)]);
  });
  if (batch.merges.empty()) return;
  crew.run(static_cast<int32_t>(batch.merges.size()) * num_kv_heads, [&](int32_t chunk, int32_t member) {
    merge(op, batch, batch.merges[static_cast<size_t>(chunk / num_kv_heads)], chunk % num_kv_heads,
          members_[static_cast<size_t>(member)]);
  });
}

// A chunk is a kv head of a task, by task, then head. What a member writes is not set.
AttentionArgs Runner::attention_args(const AttentionOp& op, const MicroBatch& batch, int32_t chunk) const {
  const KvLayout& layout = plan_->kv;
  const AttentionTask& task = batch.task_of(chunk, layout.num_kv_heads);
  AttentionArgs args;
  args.layout = &layout;
  args.pool = kv_->pool();
  args.block_table = step_->block_tables[static_cast<size_t>(task.seq)].data();
  args.layer = op.layer;
  args.kv_head = chunk % layout.num_kv_heads;
  args.group = op.num_heads / layout.num_kv_heads;
  args.q_stride = int64_t{op.num_heads} * layout.head_dim;
  args.q =
      batch.rows_of(op.q) + task.row0 * args.q_stride + int64_t{args.kv_head} * args.group * layout.head_dim;
  args.num_queries = task.num_queries;
  args.position0 = batch.positions[static_cast<size_t>(task.row0)];
  args.window = op.window;
  args.scale = op.scale;
  args.softcap = op.softcap;
  return args;
}

void Runner::attend(const AttentionOp& op, MicroBatch& batch, int32_t chunk, Member& member) {
  const int32_t num_kv_heads = plan_->kv.num_kv_heads;
  const AttentionTask& task = batch.task_of(chunk, num_kv_heads);
  AttentionArgs args = attention_args(op, batch, chunk);
  if (task.partition >= 0 && task.partition < first_partition(op, args.position0)) return;
  args.out = member.tile.data();
  args.out_stride = int64_t{args.group} * plan_->kv.head_dim;
  args.scratch = member.attention.data();
  // The next chunk is this member's, too, unless its share ends here.
  if (chunk + 1 < static_cast<int32_t>(batch.tasks.size()) * num_kv_heads) {
    args.next =
        range_of(attention_args(op, batch, chunk + 1), batch.task_of(chunk + 1, num_kv_heads).partition);
  }
  if (task.partition >= 0) {
    kernels_.attention_partial(
        args, task.partition,
        partials_of(op, batch, batch.merges[static_cast<size_t>(task.merge)], args.kv_head) +
            task.partition * task.num_queries * partial_size(op));
    return;
  }
  kernels_.attention(args);
  quantize_tile(op, batch, task.row0, task.num_queries, args.kv_head, args.out);
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
  quantize_tile(op, batch, merge.row0, merge.num_queries, head, out);
}

// Outputs of a kv head's group, [num_queries][group * head_dim].
void Runner::quantize_tile(const AttentionOp& op, MicroBatch& batch, int32_t row0, int32_t num_queries,
                           int32_t head, const float* tile) {
  const int32_t group_cols = op.num_heads / plan_->kv.num_kv_heads * plan_->kv.head_dim;
  const Acts& out = batch.acts_of(op.out);
  for (int32_t i = 0; i < num_queries; ++i) {
    kernels_.quantize(tile + int64_t{i} * group_cols, row0 + i, head * group_cols, (head + 1) * group_cols,
                      out);
  }
}

}  // namespace plait
