// Totals of a scheduler. Written by the thread that schedules, readable from any: each is one relaxed atomic,
// so values read together may be of different moments.
#pragma once

#include <cstdint>

#include "base/gauge.h"
#include "scheduler/sequence.h"

namespace plait {

struct SchedulerStats {
  Gauge<int64_t> requests_total;
  Gauge<int64_t> requests_dequeued_total;  // left the queue for the first time: admitted, or ended before
  Gauge<int64_t> dequeued_prompt_tokens_total;
  Gauge<int64_t> dequeued_choices_total;  // got a slot for the first time, or ended before
  Gauge<int64_t> requests_finished_total;
  Gauge<int64_t> choices_aborted_total;
  Gauge<int64_t> choices_failed_total;
  Gauge<int64_t> prompt_tokens_total;
  Gauge<int64_t> cached_tokens_total;
  Gauge<int64_t> generated_tokens_total;
  Gauge<int64_t> prefill_tokens_total;  // their KV was computed by prefill, recomputation included
  Gauge<int64_t> dropped_tokens_total;  // sampled in a step that was already running when the sequence ended
  Gauge<int64_t> skipped_steps_total;   // not computed to the end: all of their sequences had ended
  Gauge<int64_t> preemptions_total;
  Gauge<int64_t> saved_sequences_total;    // preempted ones whose KV was saved
  Gauge<int64_t> fetched_sequences_total;  // those that went on with it
  Gauge<int64_t> fetched_tokens_total;     // positions that were not computed again
  Gauge<int64_t> failed_transfers_total;   // saves and fetches

  // Counts a choice that gets a slot, or ends: once, whatever comes later.
  void leave_queue(Sequence& seq) {
    if (seq.has_left_queue) return;
    seq.has_left_queue = true;
    dequeued_choices_total.add(1);
  }
};

}  // namespace plait
