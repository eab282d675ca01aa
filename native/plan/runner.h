// Runs a plan over one step with the compute team. Knows: how operations are divided into chunks.
// Must not know: rings, Python, scheduling.
//
// Owner: the compute thread; nothing here is shared but the chunks that its team runs.
// INVARIANT: how a step is divided into chunks never changes a bit of any result.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/matmul/product_cut.h"
#include "parallel/team.h"
#include "plan/kv_storage.h"
#include "plan/plan.h"
#include "plan/step.h"
#include "plan/weights.h"

namespace plait {

inline constexpr int32_t kLogitRows = 32;  // rows of logits that exist at a time

struct RunnerLimits {
  int32_t max_tokens = 512;  // rows of one step
  int32_t max_slots = 64;    // sequences that can have sampling state
};

class Runner {
 public:
  Runner(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights,
         std::shared_ptr<KvStorage> kv, const KernelTable& kernels, Team& team, RunnerLimits limits);

  // Bytes that a runner of this plan allocates for its steps, for the memory ledger.
  static size_t arena_bytes(const Plan& plan, int32_t max_tokens);

  // Throws Error(kInvalidArgument) when the step names tokens, rows, slots or blocks that do not exist;
  // nothing has been changed then. Any thread.
  void check(const StepInput& step) const;

  // Runs a checked step. `capture`, when set, receives the logits of every scored row ([scores][vocab]).
  void run(const StepInput& step, StepResult& result, float* capture = nullptr);

 private:
  struct AttentionTask {
    int32_t seq;
    int32_t row0;         // first query row
    int32_t num_queries;  // 1..kMaxQueriesPerTask
    int32_t partition;    // -1: the whole context; else one partition of a single query
    int32_t merge;        // index into merges_ when it is a partition
  };
  struct Merge {
    int32_t row;
    int32_t first_partial;
    int32_t num_partials;
  };
  struct SlotState {
    SampleParams params;
    TokenHistory history;
    int32_t last_token = 0;
  };
  struct Member {  // what one team member needs for itself
    std::vector<float> tile;
    Memory attention;
    SampleScratch sample;
  };

  void begin(const StepInput& step);
  void plan_attention(const StepInput& step);
  void compute_ropes();
  void run_op(const EmbedOp& op);
  void run_op(const AddNormOp& op);
  void run_op(const QkvOp& op);
  void run_op(const AttentionOp& op);
  void run_op(const MatmulOp& op);
  void run_op(const GatedOp& op);
  void run_op(const LogitsOp& op);

  void attend(const AttentionOp& op, const AttentionTask& task, int32_t head, Member& member);
  float* partials_of(const AttentionOp& op, const Merge& merge, int32_t head);
  int64_t partial_size(const AttentionOp& op) const;
  void merge(const AttentionOp& op, const Merge& merge, int32_t head, Member& member);
  void rotate_heads(const QkvOp& op, VectorId norm, float* rows, int64_t stride, int32_t t0, int32_t t1);
  void logits_of(const LogitsOp& op, std::span<const int32_t> rows);
  void sample_rows(std::span<const int32_t> rows);

  ProductCut cut(int32_t rows, int32_t tokens, int32_t row_unit) const;
  float* rows_of(BufferId id) { return row_buffers_[static_cast<size_t>(id)]; }
  Acts acts_of(BufferId id) const;

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const Weights> weights_;
  std::shared_ptr<KvStorage> kv_;
  const KernelTable& kernels_;
  Team& team_;
  RunnerLimits limits_;

  Memory arena_;
  std::vector<float*> row_buffers_;
  std::vector<Acts> act_buffers_;
  float* logits_ = nullptr;        // [kLogitRows][vocab]
  float* logit_hidden_ = nullptr;  // [kLogitRows][hidden]
  Acts logit_acts_;
  std::vector<Member> members_;
  std::vector<SlotState> slots_;

  // The step that runs.
  const StepInput* step_ = nullptr;
  StepResult* result_ = nullptr;
  float* capture_ = nullptr;
  int32_t num_tokens_ = 0;
  std::vector<int32_t> tokens_;             // [T], references resolved
  std::vector<int32_t> positions_;          // [T]
  std::vector<int32_t> blocks_;             // [T], the KV block of the row
  std::vector<float> rope_cos_, rope_sin_;  // per table: [T][rot_dim / 2]
  std::vector<size_t> rope_offsets_;
  std::vector<AttentionTask> tasks_;
  std::vector<Merge> merges_;
  std::vector<float> partials_;
  int64_t sample_ns_ = 0;
};

}  // namespace plait
