#include "plan/plan.h"

#include <iomanip>
#include <iterator>
#include <sstream>
#include <string>
#include <variant>

#include "base/error.h"

namespace plait {

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, "plan: " + what);
}

// Checks each operation against the declared buffers and weights.
class Verifier {
 public:
  Verifier(const Plan& plan, const Weights& weights) : plan_(plan), weights_(weights) {}

  void operator()(const EmbedOp& op) const {
    const PackedMatrix& table = matrix(op.table);
    require(table.cols == plan_.hidden && table.rows >= plan_.vocab, "embedding table has the wrong shape");
    rows(op.out, plan_.hidden);
  }
  void operator()(const AddNormOp& op) const {
    rows(op.residual, plan_.hidden);
    if (op.delta >= 0) rows(op.delta, plan_.hidden);
    norms(op.norm, op.post_norm);
    acts(op.out, plan_.hidden);
  }
  void operator()(const QkvOp& op) const {
    const int32_t head_dim = plan_.kv.head_dim;
    const int32_t kv_rows = plan_.kv.num_kv_heads * head_dim;
    require(op.num_heads > 0 && op.num_heads % plan_.kv.num_kv_heads == 0,
            "query heads are no multiple of kv heads");
    product(op.in, op.wq, op.num_heads * head_dim);
    product(op.in, op.wk, kv_rows);
    product(op.in, op.wv, kv_rows);
    for (VectorId norm : {op.q_norm, op.k_norm}) {
      if (norm >= 0) require(vector(norm) == head_dim, "a head norm has the wrong length");
    }
    require(op.rope < static_cast<int32_t>(plan_.ropes.size()), "unknown rotary table");
    if (op.rope >= 0) {
      const size_t half = plan_.ropes[static_cast<size_t>(op.rope)].inverse_freqs.size();
      require(half >= 1 && 2 * half <= static_cast<size_t>(head_dim), "rotary table is wider than a head");
    }
    layer(op.layer);
    rows(op.out_q, op.num_heads * head_dim);
  }
  void operator()(const AttentionOp& op) const {
    require(op.num_heads > 0 && op.num_heads % plan_.kv.num_kv_heads == 0,
            "query heads are no multiple of kv heads");
    layer(op.layer);
    require(op.window >= 0, "negative window");
    rows(op.q, op.num_heads * plan_.kv.head_dim);
    acts(op.out, op.num_heads * plan_.kv.head_dim);
  }
  void operator()(const MatmulOp& op) const { rows(op.out, product(op.in, op.weight, -1)); }
  void operator()(const GatedOp& op) const {
    const int32_t width = product(op.in, op.gate, -1);
    product(op.in, op.up, width);
    require(width % kBlock == 0, "gated width is no multiple of the activation block");
    acts(op.out, width);
  }
  void operator()(const LogitsOp& op) const {
    rows(op.residual, plan_.hidden);
    if (op.delta >= 0) rows(op.delta, plan_.hidden);
    norms(op.norm, op.post_norm);
    const PackedMatrix& head = matrix(op.head);
    require(head.cols == plan_.hidden && head.rows == plan_.vocab, "the output matrix has the wrong shape");
  }

 private:
  const Buffer& buffer(BufferId id) const {
    require(id >= 0 && id < static_cast<int32_t>(plan_.buffers.size()), "unknown buffer");
    return plan_.buffers[static_cast<size_t>(id)];
  }
  const PackedMatrix& matrix(MatrixId id) const {
    require(id >= 0 && id < weights_.num_matrices(), "unknown matrix");
    return weights_.matrix(id);
  }
  int32_t vector(VectorId id) const {
    require(id >= 0 && id < weights_.num_vectors(), "unknown vector");
    return static_cast<int32_t>(weights_.vector(id).size());
  }
  void norms(VectorId norm, VectorId post) const {
    require(vector(norm) == plan_.hidden, "a norm has the wrong length");
    if (post >= 0) require(vector(post) == plan_.hidden, "a norm has the wrong length");
  }
  void layer(int32_t index) const {
    require(index >= 0 && index < plan_.kv.num_layers, "layer without KV cache");
  }
  void rows(BufferId id, int32_t cols) const {
    const Buffer& b = buffer(id);
    require(b.kind == BufferKind::kRows && b.cols == cols,
            "buffer " + b.name + " has the wrong kind or width");
  }
  void acts(BufferId id, int32_t cols) const {
    const Buffer& b = buffer(id);
    require(b.kind == BufferKind::kActs && b.cols == cols && (b.has_q8 || b.has_f32),
            "buffer " + b.name + " has the wrong kind or width");
  }
  // The rows of in * matrix^T; `expected` rows when >= 0.
  int32_t product(BufferId in, MatrixId id, int32_t expected) const {
    const PackedMatrix& m = matrix(id);
    acts(in, m.cols);
    const Buffer& b = buffer(in);
    require(is_float_kind(m.kind) ? b.has_f32 : b.has_q8,
            "buffer " + b.name + " lacks the form that its weight reads");
    require(expected < 0 || m.rows == expected,
            "matrix " + weights_.matrix_name(id) + " has the wrong number of rows");
    return m.rows;
  }

  const Plan& plan_;
  const Weights& weights_;
};

class Describer {
 public:
  Describer(const Plan& plan, const Weights& weights, std::ostream& out)
      : plan_(plan), weights_(weights), out_(out) {}

  void operator()(const EmbedOp& op) {
    out_ << name(op.out) << " = embed(" << matrix(op.table) << ") * " << op.scale;
  }
  void operator()(const AddNormOp& op) {
    if (op.delta >= 0) {
      out_ << name(op.residual) << " += " << post(op.post_norm, op.delta) << "; ";
    }
    out_ << name(op.out) << " = quantize(rms_norm(" << name(op.residual) << ", "
         << weights_.vector_name(op.norm) << "))";
  }
  void operator()(const QkvOp& op) {
    out_ << name(op.out_q) << ", kv[" << op.layer << "] = qkv(" << name(op.in) << ", " << matrix(op.wq)
         << ", " << matrix(op.wk) << ", " << matrix(op.wv) << ")" << (op.q_norm >= 0 ? " + head norms" : "")
         << (op.rope >= 0 ? " + rope " + std::to_string(op.rope) : "") << " + kv write";
  }
  void operator()(const AttentionOp& op) {
    out_ << name(op.out) << " = quantize(attention(" << name(op.q) << ", kv[" << op.layer << "]"
         << (plan_.kv.dtype == KvDtype::kQ8 ? " q8" : "")
         << (op.window > 0 ? ", window " + std::to_string(op.window) : "") << "))";
  }
  void operator()(const MatmulOp& op) {
    out_ << name(op.out) << " = matmul(" << name(op.in) << ", " << matrix(op.weight) << ")";
  }
  void operator()(const GatedOp& op) {
    out_ << name(op.out) << " = quantize(" << (op.activation == Activation::kSilu ? "silu" : "gelu_tanh")
         << "(matmul(" << name(op.in) << ", " << matrix(op.gate) << ")) * matmul(" << name(op.in) << ", "
         << matrix(op.up) << "))";
  }
  void operator()(const LogitsOp& op) {
    out_ << "logits = matmul(quantize(rms_norm(" << name(op.residual);
    if (op.delta >= 0) out_ << " + " << post(op.post_norm, op.delta);
    out_ << ", " << weights_.vector_name(op.norm) << ")), " << matrix(op.head)
         << ") of the rows asked for; sample";
  }

 private:
  const std::string& name(BufferId id) const { return plan_.buffers[static_cast<size_t>(id)].name; }
  const std::string& matrix(MatrixId id) const { return weights_.matrix_name(id); }
  std::string post(VectorId norm, BufferId delta) const {
    return norm >= 0 ? "rms_norm(" + name(delta) + ", " + weights_.vector_name(norm) + ")" : name(delta);
  }

  const Plan& plan_;
  const Weights& weights_;
  std::ostream& out_;
};

}  // namespace

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kAttention:
      return "attention";
    case Stage::kFfn:
      return "ffn";
    case Stage::kWhole:
      break;
  }
  return "whole";
}

std::vector<PlanPart> plan_parts(const Plan& plan) {
  const auto num_ops = static_cast<int32_t>(plan.ops.size());
  const auto op = [&plan](int32_t i) -> const PlanOp& { return plan.ops[static_cast<size_t>(i)]; };
  const auto own_stage = [](const PlanOp& typed) {
    if (std::holds_alternative<QkvOp>(typed) || std::holds_alternative<AttentionOp>(typed)) {
      return Stage::kAttention;
    }
    const bool is_ffn = std::holds_alternative<GatedOp>(typed) || std::holds_alternative<MatmulOp>(typed);
    return is_ffn ? Stage::kFfn : Stage::kWhole;
  };
  std::vector<PlanPart> parts;
  for (int32_t i = 0; i < num_ops; ++i) {
    Stage stage = own_stage(op(i));
    if (std::holds_alternative<MatmulOp>(op(i)) && i > 0 && !std::holds_alternative<AddNormOp>(op(i - 1))) {
      stage = parts.back().stage;
    }
    if (std::holds_alternative<AddNormOp>(op(i)) && i + 1 < num_ops) stage = own_stage(op(i + 1));
    if (parts.empty() || parts.back().stage != stage) parts.push_back({stage, i, i});
    parts.back().end = i + 1;
  }
  return parts;
}

void verify_plan(const Plan& plan, const Weights& weights) {
  require(plan.hidden > 0 && plan.hidden % kBlock == 0,
          "hidden size is no multiple of " + std::to_string(kBlock));
  require(plan.vocab > 0, "empty vocabulary");
  require(plan.kv.num_layers > 0 && plan.kv.num_kv_heads > 0, "no layers or kv heads");
  require(plan.kv.head_dim > 0 && plan.kv.head_dim % kBlock == 0,
          "head size is no multiple of " + std::to_string(kBlock));
  require(
      plan.kv.block_tokens > 0 && plan.kv.block_tokens % 16 == 0 && kPartition % plan.kv.block_tokens == 0,
      "block_tokens must be 16, 32, 64, 128, 256 or 512");
  require(!plan.ops.empty() && std::holds_alternative<LogitsOp>(plan.ops.back()),
          "the last operation must be logits");
  const Verifier verifier(plan, weights);
  for (const PlanOp& op : plan.ops) std::visit(verifier, op);
}

const char* op_name(const PlanOp& op) {
  static constexpr const char* kNames[] = {"embed",  "add_norm", "qkv",   "attention",
                                           "matmul", "gated",    "logits"};
  static_assert(std::size(kNames) == std::variant_size_v<PlanOp>);
  return kNames[op.index()];
}

std::string describe_plan(const Plan& plan, const Weights& weights) {
  std::ostringstream out;
  Describer describer(plan, weights, out);
  for (const PlanPart& part : plan_parts(plan)) {
    for (int32_t i = part.begin; i < part.end; ++i) {
      out << std::left << std::setw(10) << stage_name(part.stage);
      std::visit(describer, plan.ops[static_cast<size_t>(i)]);
      out << '\n';
    }
  }
  return out.str();
}

}  // namespace plait
