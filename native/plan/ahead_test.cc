#include "plan/ahead.h"

#include <cstdint>
#include <variant>

#include "base/test.h"
#include "plan/tiny_model.h"

using namespace plait;

namespace {

// What is streamed of a matrix: its coarse form if it has one.
const PackedMatrix& streamed(const Weights& weights, MatrixId id) {
  const CoarseMatrix* coarse = weights.coarse(id);
  return coarse != nullptr ? coarse->codes : weights.matrix(id);
}

// The matrix that holds all of a run, or -1.
MatrixId matrix_of(const Weights& weights, const WeightRun& run) {
  for (MatrixId id = 0; id < weights.num_matrices(); ++id) {
    const PackedMatrix& matrix = streamed(weights, id);
    const auto begin = reinterpret_cast<uintptr_t>(matrix.data);
    const auto at = reinterpret_cast<uintptr_t>(run.begin);
    if (at >= begin && at + run.num_bytes <= begin + matrix.num_bytes) return id;
  }
  return -1;
}

// What the operation begins with: the keys come first in the one that makes queries, keys and values, and a
// later member may begin with queries. Empty: no weights that are streamed.
std::vector<MatrixId> firsts(const PlanOp& op) {
  if (const auto* qkv = std::get_if<QkvOp>(&op)) return {qkv->wk, qkv->wq};
  if (const auto* product = std::get_if<MatmulOp>(&op)) return {product->weight};
  if (const auto* gated = std::get_if<GatedOp>(&op)) return {gated->gate};
  if (const auto* logits = std::get_if<LogitsOp>(&op)) return {logits->head};
  return {};
}

}  // namespace

TEST(each_operation_is_followed_by_weights_of_the_next) {
  const TinyModel model;
  const std::vector<PlanOp>& ops = model.plan->ops;
  for (const int32_t num_members : {1, 2, 3, 7}) {
    const auto ahead = weights_ahead(*model.plan, *model.weights, num_members);
    CHECK_EQ(ahead.size(), ops.size());
    for (size_t i = 0; i < ops.size(); ++i) {
      size_t next = (i + 1) % ops.size();
      while (firsts(ops[next]).empty()) next = (next + 1) % ops.size();
      const std::vector<MatrixId> expected = firsts(ops[next]);
      CHECK_EQ(ahead[i].size(), static_cast<size_t>(num_members));
      for (const WeightRun& run : ahead[i]) {
        CHECK(run.num_bytes > 0);
        const MatrixId found = matrix_of(*model.weights, run);
        CHECK(found == expected.front() || found == expected.back());
      }
      // The first member begins where the operation does.
      CHECK(ahead[i].front().begin == streamed(*model.weights, expected.front()).data);
      if (num_members == 2) CHECK(ahead[i].front().begin != ahead[i].back().begin);
    }
  }
}

TEST_MAIN()
