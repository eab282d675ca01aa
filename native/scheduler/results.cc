#include "scheduler/results.h"

#include <algorithm>
#include <exception>
#include <span>

namespace plait {

Results::Results(KvManager& kv, const SchedulerLimits& limits, Endings& endings, SchedulerStats& stats)
    : kv_(kv), limits_(limits), endings_(endings), stats_(stats) {}

void Results::apply(const PlannedStep& plan, const StepResult& result) {
  end_flight(plan);
  if (!result.error.empty()) {
    end_all(plan, result.error);
    return;
  }
  if (result.was_skipped) {
    stats_.skipped_steps_total.add(1);
    end_all(plan, "it was skipped");  // ends nobody, unless the executor skips what is wanted
    return;
  }
  if (result.samples.size() != plan.sampled.size() || result.scores.size() != plan.scored.size()) {
    end_all(plan, std::to_string(result.samples.size()) + " tokens and " +
                      std::to_string(result.scores.size()) + " scores came back for " +
                      std::to_string(plan.sampled.size()) + " samples and " +
                      std::to_string(plan.scored.size()) + " scores");
    return;
  }
  commit(plan);
  for (size_t i = 0; i < plan.scored.size(); ++i) {
    Sampled& score = plan.scored[i].seq->request->prompt_scores.emplace_back(result.scores[i]);
    score.token = plan.scored[i].token;
  }
  for (size_t i = 0; i < plan.sampled.size(); ++i) append_token(*plan.sampled[i], result.samples[i]);
  stats_.prefill_tokens_total.add(plan.load.num_prefills);
}

void Results::fail(const PlannedStep& plan, const std::string& error) {
  end_flight(plan);
  end_all(plan, error);
}

void Results::end_flight(const PlannedStep& plan) {
  for (const PlannedStep::Row& row : plan.rows) --row.seq->num_in_flight;
  for (Sequence* seq : plan.forked) --seq->num_in_flight;
}

void Results::end_all(const PlannedStep& plan, const std::string& error) {
  const std::string message = "the step failed: " + error;
  for (const PlannedStep::Row& row : plan.rows) {
    if (row.end <= row.seq->num_prompt) {
      // The next step, in flight already, may have forked choices off these prompt positions.
      endings_.finish_request(*row.seq->request, FinishReason::kError, message);
    } else {
      endings_.finish(*row.seq, FinishReason::kError, message);
    }
  }
  // What the step should have started has no sampling state.
  for (Sequence* seq : plan.starts) endings_.finish(*seq, FinishReason::kError, message);
}

// Every position of the step is computed now, and its token known: the step before sampled it.
void Results::commit(const PlannedStep& plan) {
  const int32_t block_tokens = limits_.block_tokens;
  for (const PlannedStep::Row& row : plan.rows) {
    Sequence& seq = *row.seq;
    const bool has_blocks = seq.state == SequenceState::kRunning || seq.state == SequenceState::kSaving;
    if (row.end - seq.num_committed < block_tokens || !has_blocks) continue;
    const int32_t end = row.end - row.end % block_tokens;
    try {
      kv_.commit(seq.seq_id, std::span(seq.tokens).subspan(seq.num_committed, end - seq.num_committed));
      seq.num_committed = end;
      // Own blocks may have given way to equal published ones.
      seq.block_table = kv_.snapshot(seq.seq_id);
    } catch (const std::exception& error) {  // the boundary of one request: the others go on
      endings_.finish(seq, FinishReason::kError,
                      std::string("the KV cache refused its tokens: ") + error.what());
    }
  }
}

void Results::append_token(Sequence& seq, const Sampled& sampled) {
  if (seq.state == SequenceState::kFinished) {
    stats_.dropped_tokens_total.add(1);
    return;
  }
  const int32_t token = sampled.token;
  if (token == kNoToken) {
    endings_.finish(seq, FinishReason::kError,
                    "the model computed no number for any token; its file may be damaged");
    return;
  }
  const RequestState& request = *seq.request;
  --seq.num_pending;
  seq.tokens.push_back(token);
  request.tenant->charge(1);
  stats_.generated_tokens_total.add(1);
  Output& output = endings_.emit(seq);
  output.token_ids.push_back(token);
  if (request.wants_logprobs) output.logprobs.push_back(sampled);
  const std::vector<int32_t>& stop_ids = request.params.stop_token_ids;
  if (std::binary_search(stop_ids.begin(), stop_ids.end(), token)) {
    output.stop_token_id = token;
    output.finish_reason = FinishReason::kStop;
  } else if (seq.length() >= seq.max_len) {
    output.finish_reason = FinishReason::kLength;
  }
  if (output.finish_reason != FinishReason::kNone) endings_.close(seq, output.finish_reason);
}

}  // namespace plait
