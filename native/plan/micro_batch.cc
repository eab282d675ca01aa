#include "plan/micro_batch.h"

#include <algorithm>
#include <cstdlib>

namespace plait {

namespace {

// Tiles of a sequence that are cut further.
constexpr int32_t kFewTiles = 2;

void place(const Plan& plan, const StepBuffers& buffers, MicroBatch& batch) {
  const auto first = static_cast<size_t>(batch.first_row);
  batch.rows = buffers.rows;
  batch.acts = buffers.acts;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const auto cols = static_cast<size_t>(plan.buffers[i].cols);
    if (batch.rows[i] != nullptr) batch.rows[i] += first * cols;
    Acts& acts = batch.acts[i];
    acts.num_tokens = batch.num_tokens;
    if (acts.f32 != nullptr) acts.f32 += first * cols;
    // Tiles count from the first row of the batch.
    if (acts.q8 != nullptr) acts.q8 += (acts_q8_bytes(batch.first_row, acts.cols) + 63) / 64 * 64;
  }
}

// Slices of a prompt are cut into tiles of queries. Where that are few and their context is long, as in
// decode and beside decodes, each is cut into the fixed partitions of attention.h, whose partial results are
// merged afterwards: so all threads find work. Both give the same bits.
void plan_attention(const StepInput& step, MicroBatch& batch) {
  batch.tasks.clear();
  batch.merges.clear();
  int32_t num_partials = 0;
  for (size_t s = 0; s < step.seq_slots.size(); ++s) {
    const int32_t first = std::max(step.query_starts[s] - batch.first_row, 0);
    const int32_t last = std::min(step.query_starts[s + 1] - batch.first_row, batch.num_tokens);
    const auto seq = static_cast<int32_t>(s);
    const bool are_few = last - first <= kFewTiles * kMaxQueriesPerTask;
    for (int32_t row = first; row < last; row += kMaxQueriesPerTask) {
      const int32_t num_queries = std::min(kMaxQueriesPerTask, last - row);
      const int32_t context = batch.positions[static_cast<size_t>(row + num_queries - 1)] + 1;
      if (!are_few || context <= kPartition) {
        batch.tasks.push_back({seq, row, num_queries, -1, -1});
        continue;
      }
      const int32_t partitions = (context + kPartition - 1) / kPartition;
      const auto merge = static_cast<int32_t>(batch.merges.size());
      batch.merges.push_back({row, num_queries, num_partials, partitions});
      for (int32_t p = 0; p < partitions; ++p) batch.tasks.push_back({seq, row, num_queries, p, merge});
      num_partials += partitions * num_queries;
    }
  }
  // The tiles that see most come first: the team then ends together.
  const auto cost = [&batch](const AttentionTask& t) {
    return t.num_queries * (t.partition >= 0 ? kPartition : batch.positions[static_cast<size_t>(t.row0)]);
  };
  std::stable_sort(batch.tasks.begin(), batch.tasks.end(),
                   [&cost](const AttentionTask& a, const AttentionTask& b) { return cost(a) > cost(b); });
}

}  // namespace

void take_rows(const Plan& plan, const StepBuffers& buffers, const StepInput& step, const StepRows& rows,
               int32_t begin, int32_t end, size_t partial_floats, MicroBatch& batch) {
  const auto first = static_cast<size_t>(begin);
  const auto size = static_cast<size_t>(end - begin);
  batch.first_row = begin;
  batch.num_tokens = end - begin;
  batch.tokens = std::span(rows.tokens).subspan(first, size);
  batch.positions = std::span(rows.positions).subspan(first, size);
  batch.blocks = std::span(rows.blocks).subspan(first, size);
  place(plan, buffers, batch);
  plan_attention(step, batch);
  if (batch.merges.empty()) return;
  const AttentionMerge& last = batch.merges.back();
  const int32_t num_partials = last.first_partial + last.num_partials * last.num_queries;
  const size_t num_floats = static_cast<size_t>(num_partials) * partial_floats;
  if (batch.partials.size() < num_floats) batch.partials.resize(num_floats);
}

int32_t cut_row(const StepInput& step) {
  const auto num_rows = static_cast<int32_t>(step.token_ids.size());
  if (num_rows < kMinCutRows) return 0;
  const int32_t middle = num_rows / 2;
  const auto distance = [middle](int32_t row) { return std::abs(row - middle); };
  const auto& starts = step.query_starts;
  const auto after = std::upper_bound(starts.begin(), starts.end(), middle);
  const int32_t right = *after;  // starts end with num_rows, which is larger
  const int32_t left = *(after - 1);
  const int32_t nearest = distance(left) <= distance(right) ? left : right;
  if (distance(nearest) <= num_rows / 8) return nearest;
  // Whole tiles of this sequence before the cut, where it has some.
  const int32_t tiles = (middle - left) / kTileTokens;
  return tiles > 0 ? left + tiles * kTileTokens : middle;
}

}  // namespace plait
