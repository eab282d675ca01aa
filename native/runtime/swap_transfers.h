// Carries the scheduler's wishes to KvSwap and its answers back. Knows: both. Must not know: policy, bytes.
#pragma once

#include "runtime/kv_swap.h"
#include "scheduler/scheduler.h"

namespace plait {

// Answers that have come, then what the scheduler asks for since the last call. The thread that schedules
// calls it after schedule() and after results were taken in, before it submits the next step. Never blocks.
// Returns whether the scheduler was told something, so that it may have more to plan. Whatever KvSwap refuses
// is answered as failed: the sequence is computed again.
bool run_swap_transfers(Scheduler& scheduler, KvSwap& swap);

}  // namespace plait
