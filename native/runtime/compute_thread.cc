#include "runtime/compute_thread.h"

#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace plait {

namespace {

// Main usually has the next step ready; when it has not, it comes within some microseconds.
constexpr int64_t kSpinNs = 20'000;

}  // namespace

ComputeThread::ComputeThread(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights,
                             std::shared_ptr<KvStorage> kv, ComputeOptions options,
                             std::shared_ptr<Doorbell> results_bell)
    : team_(options.num_threads, options.cpus),
      runner_(std::move(plan), std::move(weights), std::move(kv), kernel_table(options.isa), team_,
              options.limits),
      cpus_(std::move(options.cpus)),
      results_bell_(std::move(results_bell)),
      thread_([this] { loop(); }) {}

ComputeThread::~ComputeThread() { stop(); }

bool ComputeThread::try_submit(StepInput&& step) {
  if (is_stopping_.load(std::memory_order_acquire)) {
    throw Error(ErrorCode::kInvalidArgument, "step: the compute thread has been stopped");
  }
  runner_.check(step);
  if (num_unanswered_ == static_cast<int64_t>(kDepth) || !steps_.try_push(std::move(step))) return false;
  ++num_unanswered_;
  steps_bell_.ring();
  return true;
}

bool ComputeThread::try_pop(StepResult& result) {
  if (!results_.try_pop(result)) return false;
  --num_unanswered_;
  return true;
}

void ComputeThread::stop() {
  is_stopping_.store(true, std::memory_order_release);
  steps_bell_.ring();
  if (thread_.joinable()) thread_.join();
}

void ComputeThread::loop() {
  name_this_thread("plait-compute");
  if (!cpus_.empty()) pin_this_thread(cpus_.front());
  StepInput step;
  for (;;) {
    const uint32_t epoch = steps_bell_.epoch();
    if (!steps_.try_pop(step)) {
      if (is_stopping_.load(std::memory_order_acquire)) return;
      steps_bell_.wait(epoch, -1, kSpinNs);
      continue;
    }
    StepResult result;
    try {
      runner_.run(step, result);
    } catch (const std::exception& e) {
      result.step_id = step.step_id;
      result.error = e.what();
      result.end_ns = monotonic_ns();
    }
    if (result.begin_ns != 0) busy_ns_.fetch_add(result.end_ns - result.begin_ns, std::memory_order_relaxed);
    last_step_end_ns_.store(result.end_ns, std::memory_order_relaxed);
    num_steps_.fetch_add(1, std::memory_order_relaxed);
    results_.try_push(std::move(result));
    results_bell_->ring();
  }
}

}  // namespace plait
