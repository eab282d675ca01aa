// The engine's main thread without Python. join() releases the GIL, the rest takes microseconds.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/request_handle.h"
#include "runtime/engine_loop.h"

namespace plait {

namespace {

using namespace nb::literals;

// The last item of an engine loop.
struct EngineEnded {
  std::string error;
};

bool push(EngineLoop& loop, RequestHandle& request) {
  if (!loop.push(std::move(request.edit()))) return false;
  request.set_taken();
  return true;
}

nb::list pop_outputs(EngineLoop& loop) {
  nb::list items;
  EngineOutputs batch;
  while (loop.try_pop(batch)) {
    if (batch.has_ended) {
      items.append(EngineEnded{std::move(batch.error)});
    } else {
      items.append(OutputBatch{std::move(batch.outputs)});
    }
  }
  return items;
}

bool join(EngineLoop& loop, std::optional<double> timeout_s) {
  const bool is_bounded = timeout_s && *timeout_s < 9e9;
  const int64_t timeout_ns = is_bounded ? static_cast<int64_t>(std::max(*timeout_s, 0.0) * 1e9) : -1;
  const nb::gil_scoped_release release;
  return loop.join(timeout_ns);
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

void register_engine_loop(nb::module_& m) {
  m.def("run_swap_transfers", &run_swap_transfers, "scheduler"_a, "swap"_a,
        "Hand answers of `swap` to the scheduler, then what it asks for to `swap`; whether it was told "
        "something, "
        "so that it may have more to plan. Call it before schedule() and again after, until it is False.");
  nb::class_<EngineEnded>(m, "EngineEnded", "The last item that an EngineLoop gives away.")
      .def_prop_ro(
          "error",
          [](const EngineEnded& self) {
            return self.error.empty() ? std::nullopt : std::optional<std::string>(self.error);
          },
          "None: it was told to stop.");
  nb::class_<EngineLoop>(
      m, "EngineLoop",
      "The main thread of an engine without Python, see native/runtime/engine_loop.h. After "
      "start() nobody else may use its scheduler, but for stats and gauges.")
      .def(
          "__init__",
          [](EngineLoop* self, std::shared_ptr<Scheduler> scheduler, std::shared_ptr<ComputeThread> compute,
             std::shared_ptr<Doorbell> main_bell, std::shared_ptr<Doorbell> outputs_bell, size_t num_messages,
             size_t num_outputs, int32_t max_steps_in_flight, std::shared_ptr<KvSwap> swap) {
            new (self) EngineLoop(std::move(scheduler), std::move(compute), std::move(main_bell),
                                  std::move(outputs_bell), {num_messages, num_outputs, max_steps_in_flight},
                                  std::move(swap));
          },
          "scheduler"_a, "compute"_a, "main_bell"_a, "outputs_bell"_a, "num_messages"_a = 1024,
          "num_outputs"_a = 256, "max_steps_in_flight"_a = 2, "swap"_a = nb::none(),
          "main_bell: the one that `compute` and `swap` ring. outputs_bell: rung after each item of "
          "pop_outputs().")
      .def("start", &EngineLoop::start, "Start the thread, once.")
      .def("push", &push, "request"_a,
           "Any thread. Takes the request's content. False: the ring is full and the request is unchanged.")
      .def("push_abort", &EngineLoop::push_abort, "request_id"_a, "Any thread. False: the ring is full.")
      .def("push_stop", &EngineLoop::push_stop,
           "Any thread, any time: end what runs as aborted, wait for steps in flight, stop the compute "
           "thread.")
      .def("pop_outputs", &pop_outputs, nb::sig("def pop_outputs(self) -> list[OutputBatch | EngineEnded]"),
           "One thread. What is there, in order; nothing comes after an EngineEnded.")
      .def("abandon_outputs", &EngineLoop::abandon_outputs,
           "Any thread: nobody takes outputs any more, the loop need not wait for room.")
      .def("join", &join, "timeout_s"_a = nb::none(),
           "Wait for the end; whether the thread is gone. Releases the GIL.")
      .def_prop_ro("num_messages", &EngineLoop::num_messages, "Requests and aborts that wait in the ring.")
      .def_prop_ro("num_outputs", &EngineLoop::num_outputs, "Batches that wait in the ring.")
      .def_prop_ro("accepts", &EngineLoop::accepts, nb::rv_policy::reference_internal,
                   "From a request's arrival until the loop has taken it in.")
      .def_prop_ro("steps_total", &EngineLoop::num_steps)
      .def_prop_ro("failed_steps_total", &EngineLoop::num_failed_steps)
      .def_prop_ro("step_seconds_total", [](const EngineLoop& self) { return seconds(self.step_ns()); })
      .def_prop_ro("forward_seconds_total", [](const EngineLoop& self) { return seconds(self.forward_ns()); })
      .def_prop_ro("num_steps_in_flight", &EngineLoop::num_steps_in_flight)
      .def_prop_ro(
          "last_progress_s", [](const EngineLoop& self) { return seconds(self.last_progress_ns()); },
          "time.monotonic() of the last end of a step, 0 before the first.");
}

}  // namespace plait
