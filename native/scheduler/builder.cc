#include "scheduler/builder.h"

#include <algorithm>
#include <exception>
#include <string>

namespace plait {

StepBuilder::StepBuilder(KvManager& kv, WaitingQueue& waiting, RunningSet& running, Growth& growth,
                         Endings& endings, FairShare& fair_share, SchedulerStats& stats)
    : kv_(kv),
      waiting_(waiting),
      running_(running),
      growth_(growth),
      endings_(endings),
      fair_share_(fair_share),
      stats_(stats) {}

void StepBuilder::begin(PlannedStep& plan, StepInput& step, int64_t step_id) {
  plan.clear();
  plan.step_id = step.step_id = step_id;
  step.token_ids.clear();
  step.seq_slots.clear();
  step.query_starts.assign(1, 0);
  step.context_lens.clear();
  step.block_tables.clear();
  step.sample_rows.clear();
  step.sample_slots.clear();
  step.copies.clear();
  step.slot_starts.clear();
  step.scores.clear();
  step.is_unwanted = plan.is_unwanted;
}

void StepBuilder::add_starts(PlannedStep& plan) {
  for (Sequence* seq : running_.sequences()) {
    if (seq->needs_start) plan.starts.push_back(seq);
  }
}

void StepBuilder::add_decodes(PlannedStep& plan, StepInput& step, std::vector<Sequence*>& prompts) {
  sequences_ = running_.sequences();  // a preemption changes the set
  for (Sequence* seq : sequences_) {
    const int32_t length = seq->length() + seq->num_pending;
    const int32_t position = seq->num_scheduled;
    if (position < seq->num_prompt || length - position > 1) {
      prompts.push_back(seq);
      continue;
    }
    // At max_len all tokens that it may produce are known or on their way.
    if (length >= seq->max_len || seq->state != SequenceState::kRunning || seq->is_passed_over) continue;
    if (position >= seq->capacity && !growth_.grow(*seq, length)) continue;
    step.token_ids.push_back(seq->num_pending > 0 ? -1 : seq->tokens[position]);
    close_row(plan, step, *seq, length);
    seq->last_step_id = plan.step_id;
    ++plan.load.num_decodes;
    plan.load.decode_positions += length;
    sample(plan, step, *seq, static_cast<int32_t>(step.token_ids.size()) - 1);
  }
  std::erase_if(prompts, [](const Sequence* seq) { return seq->state != SequenceState::kRunning; });
}

void StepBuilder::add_prompts(PlannedStep& plan, StepInput& step, const std::vector<Sequence*>& prompts) {
  const std::vector<int32_t> shares = fair_share_.share_prompts(prompts, plan.rows, plan.step_id);
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (shares[i] > 0) add_slice(plan, step, *prompts[i], shares[i]);
  }
}

void StepBuilder::end(PlannedStep& plan, StepInput& step) {
  // Whom this plan preempted starts when it is admitted again.
  std::erase_if(plan.starts, [](const Sequence* seq) { return seq->state != SequenceState::kRunning; });
  for (const BlockCopy& copy : kv_.take_copies()) step.copies.emplace_back(copy.src, copy.dst);
  for (Sequence* seq : plan.starts) {
    seq->needs_start = false;
    SlotStart& start = step.slot_starts.emplace_back();
    start.slot = seq->slot;
    start.prompt_ids.assign(seq->tokens.begin(), seq->tokens.begin() + seq->num_prompt);
    start.output_ids.assign(seq->tokens.begin() + seq->num_prompt, seq->tokens.end());
    start.params = seq->request->params;
    start.params.seed = seq->seed;
  }
}

void StepBuilder::add_slice(PlannedStep& plan, StepInput& step, Sequence& seq, int32_t num_tokens) {
  const int32_t begin = seq.num_scheduled;
  const int32_t end = begin + num_tokens;
  if (seq.request->wants_scores && seq.index == 0) add_scores(plan, step, seq, begin, end);
  step.token_ids.insert(step.token_ids.end(), seq.tokens.begin() + begin, seq.tokens.begin() + end);
  plan.load.num_prefills += num_tokens;
  plan.load.prefill_positions += attended_positions(begin, end);
  close_row(plan, step, seq, end);
  if (end < seq.length()) return;
  const int32_t row = static_cast<int32_t>(step.token_ids.size()) - 1;
  sample(plan, step, seq, row);
  if (!seq.request->is_forked) fork(plan, step, seq, row);
}

void StepBuilder::close_row(PlannedStep& plan, StepInput& step, Sequence& seq, int32_t end) {
  seq.num_scheduled = end;
  ++seq.num_in_flight;
  step.seq_slots.push_back(seq.slot);
  step.query_starts.push_back(static_cast<int32_t>(step.token_ids.size()));
  step.context_lens.push_back(end);
  step.block_tables.push_back(*seq.block_table);
  plan.rows.push_back({&seq, end});
}

void StepBuilder::sample(PlannedStep& plan, StepInput& step, Sequence& seq, int32_t row) {
  ++seq.num_pending;
  step.sample_rows.push_back(row);
  step.sample_slots.push_back(seq.slot);
  plan.sampled.push_back(&seq);
}

// The row of position p tells how likely the prompt's token at p + 1 was.
void StepBuilder::add_scores(PlannedStep& plan, StepInput& step, Sequence& seq, int32_t begin, int32_t end) {
  RequestState& request = *seq.request;
  const auto first_row = static_cast<int32_t>(step.token_ids.size());
  const int32_t last = std::min(end, seq.num_prompt - 1);
  for (int32_t p = std::max(begin, request.num_scores_scheduled - 1); p < last; ++p) {
    const int32_t token = seq.tokens[p + 1];
    step.scores.push_back({first_row + p - begin, token, request.num_top_prompt_logprobs});
    plan.scored.push_back({&seq, token});
    request.num_scores_scheduled = p + 2;
  }
}

// The other choices share the prompt's blocks and its last row; those without room wait.
void StepBuilder::fork(PlannedStep& plan, StepInput& step, Sequence& parent, int32_t row) {
  RequestState& request = *parent.request;
  request.is_forked = true;
  std::vector<Sequence*> late;
  for (auto it = request.choices.begin() + 1; it != request.choices.end(); ++it) {
    Sequence& child = *it;
    child.tokens.assign(parent.tokens.begin(), parent.tokens.begin() + parent.num_prompt);
    if (running_.num_free_slots() == 0 || kv_.num_free_blocks() <= running_.size()) {
      late.push_back(&child);
      continue;
    }
    if (!try_fork_one(parent, child)) continue;
    running_.add(child);
    stats_.leave_queue(child);
    child.block_table = parent.block_table;
    child.num_scheduled = parent.num_scheduled;
    child.num_committed = parent.num_committed;
    child.num_in_flight = 1;
    // Both must ask before they write on: the last block is shared.
    child.capacity = parent.capacity = parent.num_scheduled;
    plan.forked.push_back(&child);
    plan.starts.push_back(&child);
    sample(plan, step, child, row);
  }
  for (auto it = late.rbegin(); it != late.rend(); ++it) {
    (*it)->state = SequenceState::kWaiting;
    waiting_.push_front(**it);
  }
}

bool StepBuilder::try_fork_one(const Sequence& parent, Sequence& child) {
  try {
    kv_.fork(parent.seq_id, child.seq_id);
    return true;
  } catch (const std::exception& error) {  // the boundary of one choice: the others go on
    endings_.finish(child, FinishReason::kError, std::string("no KV cache for this choice: ") + error.what());
    return false;
  }
}

}  // namespace plait
