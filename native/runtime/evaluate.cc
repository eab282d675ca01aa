#include "runtime/evaluate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "plan/runner.h"

namespace plait {

void evaluate_logits(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights, Isa isa,
                     std::span<const int32_t> token_ids, int32_t chunk_tokens, int32_t num_threads,
                     float* out) {
  const auto num_tokens = static_cast<int32_t>(token_ids.size());
  if (num_tokens < 1 || chunk_tokens < 1 || num_threads < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "evaluate: needs tokens, a positive chunk and a positive thread count");
  }
  const int32_t block_tokens = plan->kv.block_tokens;
  const int32_t num_blocks = (num_tokens + block_tokens - 1) / block_tokens;
  const auto vocab = static_cast<size_t>(plan->vocab);
  auto kv = std::make_shared<KvStorage>(plan->kv, num_blocks);
  Team team(num_threads, {});
  Runner runner(std::move(plan), std::move(weights), std::move(kv), kernel_table(isa), team,
                {chunk_tokens, 1});
  std::vector<int32_t> table(static_cast<size_t>(num_blocks));
  std::iota(table.begin(), table.end(), 0);
  for (int32_t begin = 0; begin < num_tokens; begin += chunk_tokens) {
    const int32_t size = std::min(chunk_tokens, num_tokens - begin);
    StepInput step;
    step.token_ids.assign(token_ids.begin() + begin, token_ids.begin() + begin + size);
    step.seq_slots = {0};
    step.query_starts = {0, size};
    step.context_lens = {begin + size};
    step.block_tables = {table};
    for (int32_t row = 0; row < size; ++row) step.scores.push_back({row, 0, 0});
    runner.check(step);
    StepResult result;
    runner.run(step, result, out + static_cast<size_t>(begin) * vocab);
  }
}

}  // namespace plait
