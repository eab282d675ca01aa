#include "scheduler/preemption.h"

#include <exception>
#include <span>
#include <string>

namespace plait {

std::string too_large_message(int32_t num_tokens, const SchedulerLimits& limits) {
  const int32_t num_blocks = (num_tokens + limits.block_tokens - 1) / limits.block_tokens;
  return "the request needs " + std::to_string(num_blocks) + " KV cache blocks, the whole pool has " +
         std::to_string(limits.num_blocks);
}

Growth::Growth(KvManager& kv, const SchedulerLimits& limits, WaitingQueue& waiting, RunningSet& running,
               Endings& endings, Swapping& swapping, const StepCostModel& costs, SchedulerStats& stats)
    : kv_(kv),
      limits_(limits),
      waiting_(waiting),
      running_(running),
      endings_(endings),
      swapping_(swapping),
      costs_(costs),
      stats_(stats) {}

bool Growth::grow(Sequence& seq, int32_t num_tokens) {
  try {
    while (!kv_.try_grow(seq.seq_id, limits_.whole_blocks(num_tokens), seq.num_scheduled)) {
      if (swapping_.holds_blocks()) return false;  // they come back soon
      Sequence& victim = *running_.sequences().back();
      if (victim.state == SequenceState::kFetching) return false;  // soon it may be preempted
      if (&victim == &seq && running_.size() == 1) {
        endings_.finish(seq, FinishReason::kError, too_large_message(num_tokens, limits_));
        return false;
      }
      preempt(victim, true);
      if (&victim == &seq) return false;
    }
    seq.block_table = kv_.snapshot(seq.seq_id);
  } catch (const std::exception& error) {  // the boundary of one request: the others go on
    endings_.finish(seq, FinishReason::kError,
                    std::string("no KV cache for the next token: ") + error.what());
    return false;
  }
  seq.capacity = static_cast<int32_t>(seq.block_table->size()) * limits_.block_tokens;
  return true;
}

void Growth::resume_drained() {
  drained_.clear();
  running_.take_drained(drained_);
  for (Sequence* seq : drained_) {
    if (seq->state == SequenceState::kPreempting) requeue(*seq);
    if (seq->state == SequenceState::kSaving) save(*seq);
  }
}

void Growth::preempt(Sequence& seq, bool is_for_blocks) {
  stats_.preemptions_total.add(1);
  if (is_for_blocks && swapping_.is_worth_saving(seq, costs_)) {
    running_.detach(seq, SequenceState::kSaving);
    swapping_.hold(seq);
  } else {
    running_.remove(seq, SequenceState::kPreempting);
  }
  if (seq.num_in_flight > 0) {
    running_.drain(seq);
  } else if (seq.state == SequenceState::kSaving) {
    save(seq);
  } else {
    requeue(seq);
  }
}

void Growth::finish_transfer(const SwapResult& result) {
  bool was_save = false;
  Sequence* seq = swapping_.finish(result, was_save);
  if (seq == nullptr) return;
  if (was_save) {
    stats_.saved_sequences_total.add(result.is_ok ? 1 : 0);
    kv_.close_sequence(seq->seq_id);
    requeue(*seq);
  } else {
    resume_fetched(*seq, result.is_ok);
  }
}

void Growth::save(Sequence& seq) {
  if (swapping_.begin_save(seq)) return;
  kv_.close_sequence(seq.seq_id);
  requeue(seq);
}

void Growth::resume_fetched(Sequence& seq, bool has_content) {
  seq.state = SequenceState::kRunning;
  seq.needs_start = true;
  if (has_content) {
    const int32_t begin = seq.num_committed;
    const int32_t end = seq.num_saved;
    try {
      kv_.commit(seq.seq_id, std::span(seq.tokens).subspan(begin, end - begin));
      seq.num_scheduled = seq.num_committed = end;
      // Own blocks may have given way to equal published ones.
      seq.block_table = kv_.snapshot(seq.seq_id);
      stats_.fetched_sequences_total.add(1);
      stats_.fetched_tokens_total.add(end - begin);
    } catch (const std::exception& error) {  // the boundary of one request: the others go on
      endings_.finish(seq, FinishReason::kError,
                      std::string("the KV cache refused its tokens: ") + error.what());
    }
  }
  swapping_.drop(seq);
}

void Growth::requeue(Sequence& seq) {
  seq.reset();
  seq.state = SequenceState::kWaiting;
  RequestState& request = *seq.request;
  if (seq.index == 0) request.num_scores_scheduled = static_cast<int32_t>(request.prompt_scores.size()) + 1;
  waiting_.push_resumed(seq);
}

}  // namespace plait
