#include "plan/pipeline.h"

#include <algorithm>
#include <string>
#include <variant>

#include "base/error.h"

namespace plait {

namespace {

size_t weight_bytes(const PlanOp& op, const Weights& weights) {
  const auto bytes = [&weights](MatrixId id) { return weights.matrix(id).num_bytes; };
  if (const auto* qkv = std::get_if<QkvOp>(&op)) return bytes(qkv->wq) + bytes(qkv->wk) + bytes(qkv->wv);
  if (const auto* product = std::get_if<MatmulOp>(&op)) return bytes(product->weight);
  if (const auto* gated = std::get_if<GatedOp>(&op)) return bytes(gated->gate) + bytes(gated->up);
  return 0;
}

// Threads for attention, so that the longer stage is as short as it can be.
int32_t attention_share(const Plan& plan, const Weights& weights, int32_t num_threads) {
  double attention = 1;
  double ffn = 1;
  for (const PlanPart& part : plan_parts(plan)) {
    for (int32_t i = part.begin; i < part.end; ++i) {
      const auto bytes = static_cast<double>(weight_bytes(plan.ops[static_cast<size_t>(i)], weights));
      if (part.stage == Stage::kAttention) attention += bytes;
      if (part.stage == Stage::kFfn) ffn += bytes;
    }
  }
  const auto time = [&](int32_t share) { return std::max(attention / share, ffn / (num_threads - share)); };
  int32_t best = 1;
  for (int32_t share = 2; share < num_threads; ++share) {
    if (time(share) < time(best)) best = share;
  }
  return best;
}

int32_t checked(int32_t num_threads) {
  if (num_threads >= 2) return num_threads;
  throw Error(ErrorCode::kInvalidArgument,
              "pipeline parallelism needs 2 compute threads or more, not " + std::to_string(num_threads));
}

}  // namespace

Pipeline::Pipeline(const Plan& plan, const Weights& weights, int32_t num_threads)
    : num_threads_(checked(num_threads)),
      num_attention_(attention_share(plan, weights, num_threads)),
      attention_(num_attention_, bell_),
      ffn_(num_threads - num_attention_, bell_) {
  attention_.assign(0, num_attention_, num_threads_ - num_attention_);
  ffn_.assign(num_attention_, num_threads_ - num_attention_, num_attention_);
}

void Pipeline::begin(int32_t num_parts) {
  num_parts_ = num_parts;
  for (Count& count : num_run_) count.value.store(0, std::memory_order_relaxed);
}

int32_t Pipeline::num_members(Stage stage) const {
  return stage == Stage::kAttention ? num_attention_ : num_threads_ - num_attention_;
}

Stage Pipeline::stage_of(int32_t member) const {
  return member < num_attention_ ? Stage::kAttention : Stage::kFfn;
}

void Pipeline::wait_for(int32_t half, int32_t part, int32_t member) {
  work_until(
      bell_, [=, this] { return has_run(half, part); }, [=, this] { work(member); }, [] { return false; });
}

void Pipeline::finish(int32_t half, int32_t part) {
  num_run_[half].value.store(part + 1, std::memory_order_release);
  bell_.ring();
}

void Pipeline::help(int32_t member) {
  work_until(
      bell_, [this] { return has_run(0, num_parts_) && has_run(1, num_parts_); }, [=, this] { work(member); },
      [] { return false; });
}

void Pipeline::work(int32_t member) {
  const bool is_attention = stage_of(member) == Stage::kAttention;
  (is_attention ? attention_ : ffn_).work(member);
  (is_attention ? ffn_ : attention_).work(member);
}

}  // namespace plait
