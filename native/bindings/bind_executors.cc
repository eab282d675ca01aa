// What runs steps: the compute thread and the inline executor. The GIL is released while a step runs on the
// caller's thread and while the compute thread is joined; the other calls take microseconds.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "bindings/bindings.h"
#include "runtime/compute_thread.h"
#include "runtime/inline_executor.h"

namespace plait {

namespace {

using namespace nb::literals;

Parallelism parallelism_of(const std::string& name) {
  if (name == "tensor") return Parallelism::kTensor;
  if (name == "pipeline") return Parallelism::kPipeline;
  throw Error(ErrorCode::kInvalidArgument, "no parallelism " + name + "; use tensor or pipeline");
}

ComputeOptions options_of(const std::string& isa, int32_t num_threads, std::vector<int32_t> cpus,
                          RunnerLimits limits, const std::string& parallelism) {
  if (num_threads < 1 || limits.max_tokens < 1 || limits.max_slots < 1) {
    throw Error(ErrorCode::kInvalidArgument, "num_threads, max_tokens and max_slots must be positive");
  }
  return {isa_of(isa), num_threads, std::move(cpus), limits, parallelism_of(parallelism)};
}

// What both executors offer: submit, pop_results, stop and the counters.
template <typename Executor>
nb::class_<Executor> register_executor(nb::module_& m, const char* name, const char* doc) {
  return nb::class_<Executor>(m, name, doc)
      .def(
          "submit", [](Executor& executor, StepInput& step) { return executor.try_submit(std::move(step)); },
          "step"_a,
          "Move the step into the ring. False: the ring is full and the step is unchanged. Raises "
          "NativeError for a bad step, and after stop.")
      .def(
          "pop_results",
          [](Executor& executor) {
            std::vector<StepResult> results;
            StepResult result;
            while (executor.try_pop(result)) results.push_back(std::move(result));
            return results;
          },
          "Those that are ready, in the order of their steps; never waits.")
      .def_prop_ro("num_steps", &Executor::num_steps)
      .def_prop_ro("busy_ns", &Executor::busy_ns, "Nanoseconds in steps.")
      .def_prop_ro("last_step_end_ns", &Executor::last_step_end_ns,
                   "CLOCK_MONOTONIC in nanoseconds; 0 before the first step.")
      .def_prop_ro("gap_ns", &Executor::gap_ns,
                   "Nanoseconds between steps while there was something to compute.")
      .def_prop_ro("max_gap_ns", &Executor::max_gap_ns, "The longest of these gaps.")
      .def_prop_ro("num_queued_steps", &Executor::num_queued_steps, "Submitted and not begun.")
      .def_prop_ro("num_queued_results", &Executor::num_queued_results, "Ready and not popped.");
}

}  // namespace

void register_executors(nb::module_& m) {
  register_executor<ComputeThread>(m, "ComputeThread",
                                   "Runs steps on a thread of its own, with a team of compute threads.")
      .def(
          "__init__",
          [](ComputeThread* self, std::shared_ptr<Plan> plan, std::shared_ptr<Weights> weights,
             std::shared_ptr<KvStorage> kv, std::shared_ptr<Doorbell> results_bell, const std::string& isa,
             int32_t num_threads, std::vector<int32_t> cpus, int32_t max_tokens, int32_t max_slots,
             const std::string& parallelism) {
            ComputeOptions options =
                options_of(isa, num_threads, std::move(cpus), {max_tokens, max_slots}, parallelism);
            verify_plan(*plan, *weights);
            new (self) ComputeThread(std::move(plan), std::move(weights), std::move(kv), std::move(options),
                                     std::move(results_bell));
          },
          "plan"_a, "weights"_a, "kv"_a, "results_bell"_a, "isa"_a, "num_threads"_a, "cpus"_a, "max_tokens"_a,
          "max_slots"_a, "parallelism"_a = "tensor",
          "results_bell is rung for each result. parallelism: tensor, or pipeline, which needs 2 threads or "
          "more. Raises NativeError.")
      .def_prop_ro("cpu", &ComputeThread::cpu, "The CPU that the thread is pinned to, -1: none.")
      .def("stop", &ComputeThread::stop, nb::call_guard<nb::gil_scoped_release>(),
           "Finish the submitted steps and join. Idempotent. Releases the GIL.");

  register_executor<InlineExecutor>(
      m, "InlineExecutor", "Runs steps on the thread that calls run_next, which is member 0 of the team.")
      .def(
          "__init__",
          [](InlineExecutor* self, std::shared_ptr<Plan> plan, std::shared_ptr<Weights> weights,
             std::shared_ptr<KvStorage> kv, const std::string& isa, int32_t num_threads,
             std::vector<int32_t> cpus, int32_t max_tokens, int32_t max_slots,
             const std::string& parallelism) {
            const ComputeOptions options =
                options_of(isa, num_threads, std::move(cpus), {max_tokens, max_slots}, parallelism);
            verify_plan(*plan, *weights);
            new (self) InlineExecutor(std::move(plan), std::move(weights), std::move(kv), options);
          },
          "plan"_a, "weights"_a, "kv"_a, "isa"_a, "num_threads"_a, "cpus"_a, "max_tokens"_a, "max_slots"_a,
          "parallelism"_a = "tensor",
          "As ComputeThread; the caller of run_next is not pinned: cpus[0] is for whoever wants to.")
      .def("run_next", &InlineExecutor::run_next, nb::call_guard<nb::gil_scoped_release>(),
           "Run the oldest submitted step on this thread. False: there is none. Releases the GIL. One thread "
           "at a time.")
      .def("stop", &InlineExecutor::stop, nb::call_guard<nb::gil_scoped_release>(),
           "Take no more steps and run the submitted ones. Idempotent. Releases the GIL. Not beside "
           "run_next.");
}

}  // namespace plait
