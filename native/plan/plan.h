// The execution plan: buffers and fused operations in the order in which a step runs them.
// Knows: what each operation reads and writes. Must not know: how it is divided over threads (runner.h).
// Built once by Python's lowering (plait.plan), verified, then immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/rope/rope.h"
#include "plan/weights.h"

namespace plait {

using BufferId = int32_t;
using MatrixId = int32_t;  // index into Weights' matrices
using VectorId = int32_t;  // index into Weights' vectors; -1: absent

enum class BufferKind : uint8_t {
  kRows,  // float32 [T][cols]
  kActs,  // quantised and/or float32 activations (acts.h)
};

struct Buffer {
  std::string name;
  BufferKind kind = BufferKind::kRows;
  int32_t cols = 0;
  bool has_q8 = false;   // kActs: read by quantised weights
  bool has_f32 = false;  // kActs: read by float weights
};

// rows of the embedding table times `scale` -> out
struct EmbedOp {
  MatrixId table = 0;
  float scale = 1.0F;
  BufferId out = 0;
};

// residual += post_norm ? rms_norm(delta) * post_norm : delta (when delta >= 0);
// out = quantise(rms_norm(residual) * norm)
struct AddNormOp {
  BufferId residual = 0;
  BufferId delta = -1;
  VectorId post_norm = -1;
  VectorId norm = 0;
  float eps = 0;
  BufferId out = 0;
};

// q, k, v = products with three matrices, as one; per-head norms; rotary embedding; k and v into the KV cache
struct QkvOp {
  BufferId in = 0;
  MatrixId wq = 0;
  MatrixId wk = 0;
  MatrixId wv = 0;
  int32_t num_heads = 0;
  VectorId q_norm = -1;
  VectorId k_norm = -1;
  float eps = 0;
  int32_t rope = -1;  // index into Plan::ropes; -1: none
  int32_t layer = 0;
  BufferId out_q = 0;
};

struct AttentionOp {
  BufferId q = 0;
  int32_t layer = 0;
  int32_t num_heads = 0;
  int32_t window = 0;
  float scale = 1.0F;
  float softcap = 0.0F;
  BufferId out = 0;  // kActs
};

struct MatmulOp {
  BufferId in = 0;
  MatrixId weight = 0;
  BufferId out = 0;  // kRows
};

// quantise(act(in * gate) * (in * up)) -> out
struct GatedOp {
  BufferId in = 0;
  MatrixId gate = 0;
  MatrixId up = 0;
  Activation activation = Activation::kSilu;
  BufferId out = 0;
};

// For the rows that are sampled or scored only: the last residual add, the final norm and the logits.
struct LogitsOp {
  BufferId residual = 0;
  BufferId delta = -1;
  VectorId post_norm = -1;
  VectorId norm = 0;
  float eps = 0;
  MatrixId head = 0;
  float softcap = 0.0F;
};

using PlanOp = std::variant<EmbedOp, AddNormOp, QkvOp, AttentionOp, MatmulOp, GatedOp, LogitsOp>;

// Inverse frequencies of one rotary table; cos and sin are computed per step for the positions of its tokens.
struct RopeTable {
  RopeStyle style = RopeStyle::kNone;
  std::vector<float> inverse_freqs;  // rot_dim / 2 angles per position
};

struct Plan {
  std::vector<Buffer> buffers;
  std::vector<RopeTable> ropes;
  std::vector<PlanOp> ops;
  KvLayout kv;
  int32_t hidden = 0;
  int32_t vocab = 0;
};

// Attention: norm, Q, K, V, attention and output product. FFN: norm, gate, up and down. Whole: neither.
enum class Stage : uint8_t { kWhole, kAttention, kFfn };

const char* stage_name(Stage stage);

// Operations [begin, end) of Plan::ops, all of one stage.
// INVARIANT: a whole part shares rows (BufferKind::kRows) with other parts, never activations.
struct PlanPart {
  Stage stage = Stage::kWhole;
  int32_t begin = 0;
  int32_t end = 0;
};

// The parts of a plan in order; neighbours differ in stage. By the kinds of operations: what writes or reads
// the KV cache is attention, gate and up are FFN, a norm belongs to what follows it, a product to what goes
// before.
std::vector<PlanPart> plan_parts(const Plan& plan);

// Throws Error(kInvalidArgument) when an operation names a buffer, weight or size that does not fit.
void verify_plan(const Plan& plan, const Weights& weights);

// The word for an operation, as describe_plan uses it.
const char* op_name(const PlanOp& op);

// One line per operation with its stage, for `plait inspect --graph`.
std::string describe_plan(const Plan& plan, const Weights& weights);

}  // namespace plait
