#include "runtime/compute_thread.h"

#include <utility>

#include "trace/trace.h"

namespace plait {

namespace {

// Main usually has the next step ready; when it has not, it comes within some microseconds.
constexpr int64_t kSpinNs = 20'000;

}  // namespace

ComputeThread::ComputeThread(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights,
                             std::shared_ptr<KvStorage> kv, ComputeOptions options,
                             std::shared_ptr<Doorbell> results_bell)
    : executor_(std::move(plan), std::move(weights), std::move(kv), options),
      cpu_(options.cpus.empty() ? -1 : options.cpus.front()),
      results_bell_(std::move(results_bell)),
      thread_([this] { loop(); }) {}

ComputeThread::~ComputeThread() { stop(); }

bool ComputeThread::try_submit(StepInput&& step) {
  if (!executor_.try_submit(std::move(step))) return false;
  steps_bell_.ring();
  return true;
}

void ComputeThread::stop() {
  executor_.close();
  steps_bell_.ring();
  if (thread_.joinable()) thread_.join();
}

void ComputeThread::loop() {
  name_this_thread("plait-compute");
  if (cpu_ >= 0) pin_this_thread(cpu_);
  for (;;) {
    const uint32_t epoch = steps_bell_.epoch();
    // Looked at before the ring: what was submitted before the end is still run.
    const bool is_closed = executor_.is_closed();
    if (executor_.run_next()) {
      results_bell_->ring();
    } else if (is_closed) {
      return;
    } else {
      static constexpr TraceName kTrace = {"wait", "compute"};
      const TraceScope trace(kTrace);
      steps_bell_.wait(epoch, -1, kSpinNs);
    }
  }
}

}  // namespace plait
