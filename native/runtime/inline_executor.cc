#include "runtime/inline_executor.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "trace/trace.h"

namespace plait {

InlineExecutor::InlineExecutor(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights,
                               std::shared_ptr<KvStorage> kv, const ComputeOptions& options)
    : team_(options.num_threads, options.cpus),
      runner_(std::move(plan), std::move(weights), std::move(kv), kernel_table(options.isa), team_,
              options.limits, options.parallelism) {}

bool InlineExecutor::try_submit(StepInput&& step) {
  if (is_closed()) throw Error(ErrorCode::kInvalidArgument, "step: the executor has been stopped");
  runner_.check(step);
  if (num_unanswered_ == static_cast<int64_t>(kDepth)) return false;
  if (step.work_since_ns == 0) step.work_since_ns = monotonic_ns();
  if (!steps_.try_push(std::move(step))) return false;
  ++num_unanswered_;
  return true;
}

bool InlineExecutor::try_pop(StepResult& result) {
  if (!results_.try_pop(result)) return false;
  --num_unanswered_;
  return true;
}

bool InlineExecutor::run_next() {
  static constexpr TraceName kTrace = {"step", "compute", {"step", "tokens", "sequences"}};
  if (!steps_.try_pop(step_)) return false;
  const TraceScope trace(kTrace, {step_.step_id, static_cast<int64_t>(step_.token_ids.size()),
                                  static_cast<int64_t>(step_.seq_slots.size())});
  note_gap(monotonic_ns());
  StepResult result;
  try {
    runner_.run(step_, result);
  } catch (const std::exception& e) {
    result.step_id = step_.step_id;
    result.error = e.what();
    result.end_ns = monotonic_ns();
  }
  if (result.begin_ns != 0) busy_ns_.fetch_add(result.end_ns - result.begin_ns, std::memory_order_relaxed);
  last_step_end_ns_.store(result.end_ns, std::memory_order_relaxed);
  num_steps_.fetch_add(1, std::memory_order_relaxed);
  results_.try_push(std::move(result));
  return true;
}

void InlineExecutor::note_gap(int64_t begin_ns) {
  const int64_t last_end_ns = last_step_end_ns();
  if (last_end_ns == 0) return;
  const int64_t gap_ns = begin_ns - std::max(last_end_ns, step_.work_since_ns);
  if (gap_ns <= 0) return;
  // One writer: no exchange is needed.
  gap_ns_.store(this->gap_ns() + gap_ns, std::memory_order_relaxed);
  max_gap_ns_.store(std::max(max_gap_ns(), gap_ns), std::memory_order_relaxed);
}

void InlineExecutor::stop() {
  close();
  while (run_next()) {
  }
}

}  // namespace plait
