// Admission of a step: nothing that Python hands over can make the kernels read or write outside their
// memory.
#include <string>

#include "base/error.h"
#include "plan/runner.h"

namespace plait {

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, "step: " + what);
}

bool is_within(int32_t value, int32_t end) { return value >= 0 && value < end; }

}  // namespace

void Runner::check(const StepInput& step) const {
  const size_t num_seqs = step.seq_slots.size();
  const auto num_tokens = static_cast<int32_t>(step.token_ids.size());
  require(num_tokens >= 1 && num_tokens <= limits_.max_tokens,
          std::to_string(num_tokens) + " tokens, but 1 to " + std::to_string(limits_.max_tokens) + " fit");
  require(num_seqs >= 1 && step.query_starts.size() == num_seqs + 1 && step.context_lens.size() == num_seqs &&
              step.block_tables.size() == num_seqs,
          "lists of sequences differ in length");
  require(step.query_starts.front() == 0 && step.query_starts.back() == num_tokens,
          "query_starts must run from 0 to the number of tokens");
  require(step.sample_rows.size() == step.sample_slots.size(),
          "sample_rows and sample_slots differ in length");
  for (int32_t token : step.token_ids) {
    require(token == -1 || is_within(token, plan_->vocab),
            "token id " + std::to_string(token) + " is not in the vocabulary");
  }
  const int32_t block_tokens = plan_->kv.block_tokens;
  for (size_t s = 0; s < num_seqs; ++s) {
    require(is_within(step.seq_slots[s], limits_.max_slots),
            "slot " + std::to_string(step.seq_slots[s]) + " does not exist");
    const int32_t num_queries = step.query_starts[s + 1] - step.query_starts[s];
    require(num_queries >= 1 && step.context_lens[s] >= num_queries,
            "a sequence has no tokens, or fewer positions than tokens");
    const int64_t capacity = static_cast<int64_t>(step.block_tables[s].size()) * block_tokens;
    require(step.context_lens[s] <= capacity, "a block table is too short for its context");
    for (int32_t block : step.block_tables[s]) {
      require(is_within(block, kv_->num_blocks()), "block " + std::to_string(block) + " does not exist");
    }
  }
  for (int32_t row : step.sample_rows) require(is_within(row, num_tokens), "a sampled row does not exist");
  for (int32_t slot : step.sample_slots)
    require(is_within(slot, limits_.max_slots), "a sampled slot does not exist");
  for (const ScoreRow& score : step.scores) {
    require(is_within(score.row, num_tokens) && is_within(score.token, plan_->vocab) && score.num_top >= 0,
            "a scored row or token does not exist");
  }
  for (const auto& [source, target] : step.copies) {
    require(is_within(source, kv_->num_blocks()) && is_within(target, kv_->num_blocks()),
            "a copied block does not exist");
  }
  for (const SlotStart& start : step.slot_starts) {
    require(is_within(start.slot, limits_.max_slots), "a started slot does not exist");
    require(!start.prompt_ids.empty(), "a started slot has no prompt");
  }
}

}  // namespace plait
