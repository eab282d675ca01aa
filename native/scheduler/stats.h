// Totals of a scheduler. Written by the thread that schedules, readable from any: each is one relaxed atomic,
// so values read together may be of different moments.
#pragma once

#include <atomic>
#include <cstdint>

#include "scheduler/sequence.h"

namespace plait {

// One writer; readers in any thread. Relaxed: it orders nothing.
class Gauge {
 public:
  void set(int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(int64_t amount) { set(get() + amount); }
  int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

struct SchedulerStats {
  Gauge requests_total;
  Gauge requests_dequeued_total;  // left the queue for the first time: admitted, or ended before
  Gauge dequeued_prompt_tokens_total;
  Gauge dequeued_choices_total;  // got a slot for the first time, or ended before
  Gauge requests_finished_total;
  Gauge choices_aborted_total;
  Gauge choices_failed_total;
  Gauge prompt_tokens_total;
  Gauge cached_tokens_total;
  Gauge generated_tokens_total;
  Gauge prefill_tokens_total;  // their KV was computed by prefill, recomputation included
  Gauge dropped_tokens_total;  // sampled in a step that was already running when the sequence ended
  Gauge preemptions_total;

  // Counts a choice that gets a slot, or ends: once, whatever comes later.
  void leave_queue(Sequence& seq) {
    if (seq.has_left_queue) return;
    seq.has_left_queue = true;
    dequeued_choices_total.add(1);
  }
};

}  // namespace plait
