// Rows of a step that run through operations together, with the memory that they write to. Knows: buffers,
// rows, the tasks of attention. Must not know: kernels, teams.
//
// Owner: one thread at a time prepares it; operations then read it and write its buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "plan/step.h"

namespace plait {

// Rows here and below count from the first one of the micro-batch.
struct AttentionTask {
  int32_t seq;
  int32_t row0;         // first query row
  int32_t num_queries;  // 1..kMaxQueriesPerTask
  int32_t partition;    // -1: the whole context; else one partition of it
  int32_t merge;        // index into MicroBatch::merges when it is a partition
};

// The partial results of a tile of queries: of each kv head num_partials, each of num_queries.
struct AttentionMerge {
  int32_t row0;
  int32_t num_queries;
  int32_t first_partial;  // partials of single queries that come before
  int32_t num_partials;
};

// What the rows of a step are, computed once for all layers. [T]
struct StepRows {
  std::vector<int32_t> tokens;     // references resolved
  std::vector<int32_t> positions;  // in its sequence
  std::vector<int32_t> blocks;     // the KV block of the row
};

struct MicroBatch {
  int32_t first_row = 0;  // of the step
  int32_t num_tokens = 0;
  std::span<const int32_t> tokens, positions, blocks;
  std::vector<float*> rows;  // by BufferId; null for activations
  std::vector<Acts> acts;    // by BufferId
  std::vector<AttentionTask> tasks;
  std::vector<AttentionMerge> merges;
  std::vector<float> partials;

  float* rows_of(BufferId id) const { return rows[static_cast<size_t>(id)]; }
  const Acts& acts_of(BufferId id) const { return acts[static_cast<size_t>(id)]; }
};

// Where the buffers of all rows stand.
struct StepBuffers {
  std::vector<float*> rows;  // by BufferId: [max_tokens][cols], or null
  std::vector<Acts> acts;    // by BufferId: room for max_tokens and kActsSlack bytes
};
inline constexpr size_t kActsSlack = 64;

// Makes `batch` the rows [begin, end) of a step. Rows of different batches stand apart, each where it stands
// in the buffer of all rows; activations do so among batches that are disjoint, with at most one after
// another. `partial_floats`: of one query's partial result of attention, all heads. Allocates when a step is
// larger than before.
void take_rows(const Plan& plan, const StepBuffers& buffers, const StepInput& step, const StepRows& rows,
               int32_t begin, int32_t end, size_t partial_floats, MicroBatch& batch);

// The row at which a step is cut in two for a pipeline, 0 when it is better left whole: between two sequences
// where that leaves the halves about equal, otherwise within the sequence in the middle.
int32_t cut_row(const StepInput& step);

// Up to a tile of tokens, products read each weight once: cutting such a step would read it twice.
inline constexpr int32_t kMinCutRows = kTileTokens + 1;

}  // namespace plait
