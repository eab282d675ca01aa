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
    attend(op, batch, batch.tasks[static_cast<size_t>(chunk / num_kv_heads)], chunk % num_kv_heads,
           members_[static_cast<size_t>(member)]);
  });
  if (batch.merges.empty()) return;
  crew.run(static_cast<int32_t>(batch.merges.size()) * num_kv_heads, [&](int32_t chunk, int32_t member) {
    merge(op, batch, batch.merges[static_cast<size_t>(chunk / num_kv_heads)], chunk % num_kv_heads,
          members_[static_cast<size_t>(member)]);
  });
}

void Runner::attend(const AttentionOp& op, MicroBatch& batch, const AttentionTask& task, int32_t head,
                    Member& member) {
  const int32_t position0 = batch.positions[static_cast<size_t>(task.row0)];
  if (task.partition >= 0 && task.partition < first_partition(op, position0)) return;
  const KvLayout& layout = plan_->kv;
  const int32_t group = op.num_heads / layout.num_kv_heads;
  const int32_t group_cols = group * layout.head_dim;
  const int64_t q_stride = int64_t{op.num_heads} * layout.head_dim;
  AttentionArgs args;
  args.layout = &layout;
  args.pool = kv_->pool();
  args.block_table = step_->block_tables[static_cast<size_t>(task.seq)].data();
  args.layer = op.layer;
  args.kv_head = head;
  args.group = group;
  args.q = batch.rows_of(op.q) + task.row0 * q_stride + int64_t{head} * group_cols;
  args.q_stride = q_stride;
  args.num_queries = task.num_queries;
  args.position0 = position0;
  args.window = op.window;
  args.scale = op.scale;
  args.softcap = op.softcap;
  args.out = member.tile.data();
  args.out_stride = group_cols;
  args.scratch = member.attention.data();
  if (task.partition >= 0) {
    kernels_.attention_partial(args, task.partition,
                               partials_of(op, batch, batch.merges[static_cast<size_t>(task.merge)], head) +
                                   task.partition * partial_size(op));
    return;
  }
  kernels_.attention(args);
  const Acts& out = batch.acts_of(op.out);
  for (int32_t i = 0; i < task.num_queries; ++i) {
    kernels_.quantize(args.out + static_cast<int64_t>(i) * group_cols, task.row0 + i, head * group_cols,
                      (head + 1) * group_cols, out);
  }
}

// The partial results of one query and kv head, in rising order of their partitions.
float* Runner::partials_of(const AttentionOp& op, MicroBatch& batch, const AttentionMerge& merge,
                           int32_t head) {
  const int64_t index =
      int64_t{merge.first_partial} * plan_->kv.num_kv_heads + int64_t{head} * merge.num_partials;
  return batch.partials.data() + index * partial_size(op);
}

int64_t Runner::partial_size(const AttentionOp& op) const {
  return int64_t{op.num_heads / plan_->kv.num_kv_heads} * (2 + plan_->kv.head_dim);
}

void Runner::merge(const AttentionOp& op, MicroBatch& batch, const AttentionMerge& merge, int32_t head,
                   Member& member) {
  const int32_t group = op.num_heads / plan_->kv.num_kv_heads;
  const int32_t group_cols = group * plan_->kv.head_dim;
  float* out = member.tile.data();
  const int32_t first = first_partition(op, batch.positions[static_cast<size_t>(merge.row)]);
  kernels_.attention_merge(partials_of(op, batch, merge, head) + first * partial_size(op),
                           merge.num_partials - first, group, plan_->kv.head_dim, out);
  kernels_.quantize(out, merge.row, head * group_cols, (head + 1) * group_cols, batch.acts_of(op.out));
}

}  // namespace plait
