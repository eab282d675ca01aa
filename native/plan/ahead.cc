#include "plan/ahead.h"

#include <algorithm>
#include <variant>

#include "kernels/matmul/packed_layout.h"
#include "kernels/matmul/product_cut.h"

namespace plait {

namespace {

// What a second-level cache keeps beside the activations of a step.
constexpr size_t kAheadBytes = size_t{128} << 10;

// Of the rows from `row0` on.
WeightRun run_from(const PackedMatrix& matrix, int64_t row0) {
  const size_t offset = static_cast<size_t>(row0 / kRowGroup) * group_bytes(matrix.kind, matrix.cols);
  return {matrix.data + offset, std::min(kAheadBytes, matrix.num_bytes - offset)};
}

class FirstWeights {
 public:
  FirstWeights(const Plan& plan, const Weights& weights, int32_t member, int32_t num_members)
      : plan_(plan), weights_(weights), member_(member), num_members_(num_members) {}

  WeightRun operator()(const MatmulOp& op) const { return of_rows(op.weight, kRowUnit); }
  WeightRun operator()(const GatedOp& op) const { return of_rows(op.gate, kBlock); }
  WeightRun operator()(const LogitsOp& op) const {
    const CoarseMatrix* coarse = weights_.coarse(op.head);  // most steps of few rows read it, if there is one
    return coarse != nullptr ? of_rows(coarse->codes, kRowUnit) : of_rows(op.head, kRowUnit);
  }
  WeightRun operator()(const QkvOp& op) const {
    const int32_t num_kv_heads = plan_.kv.num_kv_heads;
    const int32_t head = share_of(num_kv_heads + op.num_heads);
    const bool is_kv = head < num_kv_heads;
    return run_from(weights_.matrix(is_kv ? op.wk : op.wq),
                    int64_t{is_kv ? head : head - num_kv_heads} * plan_.kv.head_dim);
  }
  template <typename Op>
  WeightRun operator()(const Op&) const {
    return {};
  }

 private:
  // The first chunk of the member's share (crew.h).
  int32_t share_of(int32_t num_chunks) const {
    return static_cast<int32_t>(int64_t{num_chunks} * member_ / num_members_);
  }
  WeightRun of_rows(MatrixId id, int32_t row_unit) const { return of_rows(weights_.matrix(id), row_unit); }
  WeightRun of_rows(const PackedMatrix& matrix, int32_t row_unit) const {
    const ProductCut cut = cut_product(matrix.rows, 1, row_unit, num_members_);
    return run_from(matrix, cut.area(share_of(cut.num_chunks())).row0);
  }

  const Plan& plan_;
  const Weights& weights_;
  const int32_t member_;
  const int32_t num_members_;
};

}  // namespace

std::vector<std::vector<WeightRun>> weights_ahead(const Plan& plan, const Weights& weights,
                                                  int32_t num_members) {
  std::vector<std::vector<WeightRun>> ahead(plan.ops.size());
  std::vector<WeightRun> next(static_cast<size_t>(num_members));
  // Twice, from the last to the first: after the last operation comes the first of the next step.
  for (size_t turn = 2 * plan.ops.size(); turn-- > 0;) {
    const size_t i = turn % plan.ops.size();
    ahead[i] = next;
    for (int32_t member = 0; member < num_members; ++member) {
      const WeightRun run = std::visit(FirstWeights(plan, weights, member, num_members), plan.ops[i]);
      if (run.begin != nullptr) next[static_cast<size_t>(member)] = run;
    }
  }
  return ahead;
}

}  // namespace plait
