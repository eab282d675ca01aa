// Runs a plan over one step with the compute team. Knows: how operations are divided into chunks, and how two
// halves of a step run side by side. Must not know: rings, Python, scheduling.
//
// Tensor parallelism runs one operation after another, each divided over the whole team. Pipeline parallelism
// cuts a step of kMinCutRows rows or more in two micro-batches (micro_batch.h): one part of the team runs the
// attention parts of the plan, the other the FFN parts, so that one micro-batch is in attention while the
// other is in FFN. Threads that have nothing to do in their stage help the other one. What belongs to neither
// stage, and steps of fewer rows, run as with tensor parallelism.
//
// Owner: the compute thread; nothing here is shared but the chunks that its team runs.
// INVARIANT: how a step is divided into chunks never changes a bit of any result.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"
#include "parallel/team.h"
#include "plan/ahead.h"
#include "plan/kv_storage.h"
#include "plan/micro_batch.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/step.h"
#include "plan/weights.h"
#include "trace/trace.h"

namespace plait {

inline constexpr int32_t kLogitRows = 32;  // rows of logits that exist at a time
// Rows whose largest logits are searched for (kernels/matmul/coarse.h): with more of them multiplying takes
// longer than reading.
inline constexpr int32_t kMostSearchedRows = 8;

// The first of the largest logits of a part of a row; value -infinity when none is a number.
struct LargestLogit {
  float value;
  int32_t token;
};

struct RunnerLimits {
  int32_t max_tokens = 512;  // rows of one step
  int32_t max_slots = 64;    // sequences that can have sampling state
};

enum class Parallelism : uint8_t { kTensor, kPipeline };

class Runner {
 public:
  // Throws Error(kInvalidArgument) for a pipeline with a team of one.
  Runner(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights,
         std::shared_ptr<KvStorage> kv, const KernelTable& kernels, Team& team, RunnerLimits limits,
         Parallelism parallelism = Parallelism::kTensor);

  // Bytes that a runner of this plan allocates for its steps, for the memory ledger.
  static size_t arena_bytes(const Plan& plan, int32_t max_tokens);

  // Throws Error(kInvalidArgument) when the step names tokens, rows, slots or blocks that do not exist;
  // nothing has been changed then. Any thread.
  void check(const StepInput& step) const;

  // Runs a checked step. `capture`, when set, receives the logits of every scored row ([scores][vocab]).
  void run(const StepInput& step, StepResult& result, float* capture = nullptr);

 private:
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

  void place_buffers();
  void begin(const StepInput& step);
  void resolve_rows(const StepInput& step);
  void compute_ropes();
  // The operations of a part, of the rows of a batch, divided over a crew.
  void run_part(const PlanPart& part, MicroBatch& batch, Crew& crew);
  // The parts [begin, end) of parts_, none of them whole, for both halves of a step.
  void run_pipeline(size_t begin, size_t end);
  void lead_stage(Stage stage, size_t begin, size_t end, int32_t member);

  // Whoever waits during operation `i` fetches weights of the next one that has some.
  void set_ahead(size_t i, Crew& crew);

  void run_op(const EmbedOp& op, MicroBatch& batch, Crew& crew);
  void run_op(const AddNormOp& op, MicroBatch& batch, Crew& crew);
  void run_op(const QkvOp& op, MicroBatch& batch, Crew& crew);
  void run_op(const AttentionOp& op, MicroBatch& batch, Crew& crew);
  void run_op(const MatmulOp& op, MicroBatch& batch, Crew& crew);
  void run_op(const GatedOp& op, MicroBatch& batch, Crew& crew);
  void run_op(const LogitsOp& op, MicroBatch& batch, Crew& crew);

  struct AttentionChunks;
  AttentionArgs attention_args(const AttentionOp& op, const MicroBatch& batch, const AttentionChunks& chunks,
                               int32_t chunk) const;
  void attend(const AttentionOp& op, MicroBatch& batch, const AttentionChunks& chunks, int32_t chunk,
              Member& member);
  float* partials_of(const AttentionOp& op, MicroBatch& batch, const AttentionMerge& merge, int32_t head);
  int64_t partial_size(const AttentionOp& op) const;
  void merge(const AttentionOp& op, MicroBatch& batch, const AttentionMerge& merge, int32_t head,
             Member& member);
  void quantize_tile(const Acts& out, int32_t row0, int32_t num_queries, int32_t head0, int32_t num_heads,
                     const float* tile);
  void rotate_heads(const QkvOp& op, VectorId norm, const MicroBatch& batch, float* rows, int64_t stride,
                    int32_t t0, int32_t t1);
  void find_largest_wanted(std::span<const int32_t> rows);
  void logits_of(const LogitsOp& op, std::span<const int32_t> rows);
  // The activations of the output product, in logit_acts_.
  Acts normed_rows(const LogitsOp& op, std::span<const int32_t> rows);
  void all_logits(const LogitsOp& op, const Acts& acts);
  // largest_ of all_logits() and nothing else.
  void search_largest(const LogitsOp& op, const CoarseMatrix& coarse, const Acts& acts);
  const LargestLogit& largest_of(size_t row) const;
  void sample_rows(std::span<const int32_t> rows);

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const Weights> weights_;
  std::shared_ptr<KvStorage> kv_;
  const KernelTable& kernels_;
  Team& team_;
  RunnerLimits limits_;
  std::vector<PlanPart> parts_;
  std::vector<const TraceName*> op_trace_names_;  // by kind of operation
  std::vector<std::vector<WeightRun>> ahead_;     // by operation and member
  std::unique_ptr<Pipeline> pipeline_;            // null: tensor parallelism
  size_t partial_floats_ = 0;                     // of one partial result of attention, all heads

  Memory arena_;
  StepBuffers buffers_;
  float* logits_ = nullptr;        // [kLogitRows][vocab]
  float* logit_hidden_ = nullptr;  // [kLogitRows][hidden]
  Acts logit_acts_;
  // By row of logits: whether its largest one is wanted, and that of each cut of the product.
  std::vector<uint8_t> is_largest_wanted_;
  std::vector<LargestLogit> largest_;
  std::vector<LargestRange> ranges_;                   // as largest_, of coarse products
  std::array<Acts, kMostSearchedRows> searched_acts_;  // of one token each
  size_t num_logit_cuts_ = 0;
  std::vector<Member> members_;
  std::vector<SlotState> slots_;

  // The step that runs.
  const StepInput* step_ = nullptr;
  StepResult* result_ = nullptr;
  float* capture_ = nullptr;
  std::atomic<bool> was_skipped_{false};  // a part of the step; written by whoever runs parts
  StepRows rows_;
  std::vector<float> rope_cos_, rope_sin_;  // per table: [T][rot_dim / 2]
  std::vector<size_t> rope_offsets_;
  MicroBatch whole_;
  MicroBatch halves_[2];
  int64_t sample_ns_ = 0;
};

}  // namespace plait
