// Attention of a step: which queries are computed together, and how a long context is split over the team.
#include <algorithm>

#include "plan/runner.h"

namespace plait {

namespace {

// The first partition that the query at `position` sees something of.
int32_t first_partition(const AttentionOp& op, int32_t position) {
  return op.window > 0 ? std::max(0, position + 1 - op.window) / kPartition : 0;
}

}  // namespace

// Prefill slices are cut into tiles of queries; a single query with a long context is cut into the fixed
// partitions of attention.h, whose partial results are merged afterwards. Both give the same bits.
void Runner::plan_attention(const StepInput& step) {
  tasks_.clear();
  merges_.clear();
  int32_t num_partials = 0;
  for (size_t s = 0; s < step.seq_slots.size(); ++s) {
    const int32_t first = step.query_starts[s];
    const int32_t last = step.query_starts[s + 1];
    const auto seq = static_cast<int32_t>(s);
    if (last - first == 1 && step.context_lens[s] > kPartition) {
      const int32_t partitions = (step.context_lens[s] + kPartition - 1) / kPartition;
      const auto merge = static_cast<int32_t>(merges_.size());
      merges_.push_back({first, num_partials, partitions});
      for (int32_t p = 0; p < partitions; ++p) tasks_.push_back({seq, first, 1, p, merge});
      num_partials += partitions;
      continue;
    }
    for (int32_t row = first; row < last; row += kMaxQueriesPerTask) {
      tasks_.push_back({seq, row, std::min(kMaxQueriesPerTask, last - row), -1, -1});
    }
  }
  // The tiles that see most come first: the team then ends together.
  std::stable_sort(tasks_.begin(), tasks_.end(), [this](const AttentionTask& a, const AttentionTask& b) {
    const auto cost = [this](const AttentionTask& t) {
      return t.partition >= 0 ? kPartition : t.num_queries * positions_[static_cast<size_t>(t.row0)];
    };
    return cost(a) > cost(b);
  });
}

void Runner::run_op(const AttentionOp& op) {
  const int32_t num_kv_heads = plan_->kv.num_kv_heads;
  if (!merges_.empty()) {
    const size_t num_partials =
        static_cast<size_t>(merges_.back().first_partial + merges_.back().num_partials);
    const size_t size =
        num_partials * static_cast<size_t>(num_kv_heads) * static_cast<size_t>(partial_size(op));
    if (partials_.size() < size) partials_.resize(size);
  }
  team_.run(static_cast<int32_t>(tasks_.size()) * num_kv_heads, [&](int32_t chunk, int32_t member) {
    attend(op, tasks_[static_cast<size_t>(chunk / num_kv_heads)], chunk % num_kv_heads,
           members_[static_cast<size_t>(member)]);
  });
  if (merges_.empty()) return;
  team_.run(static_cast<int32_t>(merges_.size()) * num_kv_heads, [&](int32_t chunk, int32_t member) {
    merge(op, merges_[static_cast<size_t>(chunk / num_kv_heads)], chunk % num_kv_heads,
          members_[static_cast<size_t>(member)]);
  });
}

void Runner::attend(const AttentionOp& op, const AttentionTask& task, int32_t head, Member& member) {
  const int32_t position0 = positions_[static_cast<size_t>(task.row0)];
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
  args.q = rows_of(op.q) + task.row0 * q_stride + int64_t{head} * group_cols;
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
    kernels_.attention_partial(
        args, task.partition,
        partials_of(op, merges_[static_cast<size_t>(task.merge)], head) + task.partition * partial_size(op));
    return;
  }
  kernels_.attention(args);
  const Acts out = acts_of(op.out);
  for (int32_t i = 0; i < task.num_queries; ++i) {
    kernels_.quantize(args.out + static_cast<int64_t>(i) * group_cols, task.row0 + i, head * group_cols,
                      (head + 1) * group_cols, out);
  }
}

// The partial results of one query and kv head, in rising order of their partitions.
float* Runner::partials_of(const AttentionOp& op, const Merge& merge, int32_t head) {
  const int64_t index =
      int64_t{merge.first_partial} * plan_->kv.num_kv_heads + int64_t{head} * merge.num_partials;
  return partials_.data() + index * partial_size(op);
}

int64_t Runner::partial_size(const AttentionOp& op) const {
  return int64_t{op.num_heads / plan_->kv.num_kv_heads} * (2 + plan_->kv.head_dim);
}

void Runner::merge(const AttentionOp& op, const Merge& merge, int32_t head, Member& member) {
  const int32_t group = op.num_heads / plan_->kv.num_kv_heads;
  const int32_t group_cols = group * plan_->kv.head_dim;
  float* out = member.tile.data();
  const int32_t first = first_partition(op, positions_[static_cast<size_t>(merge.row)]);
  kernels_.attention_merge(partials_of(op, merge, head) + first * partial_size(op),
                           merge.num_partials - first, group, plan_->kv.head_dim, out);
  kernels_.quantize(out, merge.row, head * group_cols, (head + 1) * group_cols, acts_of(op.out));
}

}  // namespace plait
