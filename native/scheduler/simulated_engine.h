// An engine on a simulated machine and a simulated clock, for tests of the scheduler's pace and fairness.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"

namespace plait {

// Steps cost a fixed time, and more by token and by attended position; all of it is noisy.
class SimulatedMachine {
 public:
  double cost_s(const StepInput& step) {
    double seconds = 2e-3;
    const size_t num_rows = step.seq_slots.size();
    for (size_t i = 0; i < num_rows; ++i) {
      const int32_t num_tokens = step.query_starts[i + 1] - step.query_starts[i];
      const int32_t end = step.context_lens[i];
      seconds += 0.8e-3 * num_tokens;
      seconds += 0.15e-6 * static_cast<double>(attended_positions(end - num_tokens, end));
    }
    return seconds * std::normal_distribution<double>(1.0, 0.06)(rng_);
  }

 private:
  std::mt19937 rng_{3};
};

// Two steps in flight, as in the engine: the cost of a step is known when the one after the next is planned.
class SimulatedEngine {
 public:
  static constexpr int32_t kBlockTokens = 16;
  static constexpr int32_t kNumBlocks = 4000;

  explicit SimulatedEngine(SchedulerLimits limits) : scheduler(whole(std::move(limits)), kv) {
    add(-1, 17, 2);  // the engine's warm-up
    while (scheduler.has_work()) turn();
  }

  void add(int64_t id, int32_t num_prompt, int32_t max_tokens, const std::string& tenant = "") {
    Request request;
    request.request_id = id;
    for (int32_t i = 0; i < num_prompt; ++i) {
      request.prompt_ids.push_back(static_cast<int32_t>((id + 1) * 31 + i) % 997);
    }
    request.max_tokens = max_tokens;
    request.tenant = tenant;
    request.arrived_ns = now_ns();
    begin_s[id] = now_s;
    scheduler.add(std::move(request));
  }

  // Runs one step, or a millisecond passes; returns the seconds.
  double turn() {
    plan(now_ns());
    double seconds = 1e-3;
    if (in_flight_.empty()) {
      now_s += seconds;
      return seconds;
    }
    StepResult result = in_flight_.front();
    seconds = static_cast<double>(result.end_ns) * 1e-9;
    result.begin_ns = now_ns();
    result.end_ns = now_ns() + result.end_ns;
    // The plan for the time after it, unless it ends before that is due.
    const int64_t due_ns = scheduler.next_wakeup_ns(true);
    if (due_ns >= 0 && due_ns < result.end_ns) plan(due_ns);
    if (in_flight_.size() == 1) ++num_waits;
    in_flight_.pop_front();
    now_s += seconds;
    scheduler.finish_step(result);
    for (const Output& output : scheduler.take_outputs()) {
      num_tokens[output.request_id] += static_cast<int32_t>(output.token_ids.size());
      first_token_s.try_emplace(output.request_id, now_s);
      if (output.finish_reason != FinishReason::kNone) end_s[output.request_id] = now_s;
    }
    return seconds;
  }

  int64_t now_ns() const { return static_cast<int64_t>(now_s * 1e9); }

  std::shared_ptr<KvManager> kv = std::make_shared<KvManager>(kNumBlocks, kBlockTokens, "m");
  Scheduler scheduler;
  double now_s = 1.0;
  // By request.
  std::map<int64_t, double> begin_s, first_token_s, end_s;
  std::map<int64_t, int32_t> num_tokens;
  int32_t num_waits = 0;  // steps that ended before the next one was planned

 private:
  void plan(int64_t when_ns) {
    StepInput step;
    while (in_flight_.size() < 2 && scheduler.schedule(when_ns, step)) {
      StepResult result;
      result.step_id = step.step_id;
      result.samples.resize(step.sample_slots.size());
      result.end_ns = static_cast<int64_t>(machine_.cost_s(step) * 1e9);
      in_flight_.push_back(result);
    }
  }

  static SchedulerLimits whole(SchedulerLimits limits) {
    limits.num_blocks = kNumBlocks;
    limits.block_tokens = kBlockTokens;
    limits.enable_prefix_cache = false;
    return limits;
  }

  SimulatedMachine machine_;
  std::deque<StepResult> in_flight_;
};

}  // namespace plait
