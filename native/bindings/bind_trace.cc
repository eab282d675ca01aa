// The trace from Python: begin, end, and events of Python threads. The GIL is released while the trace ends.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "trace/trace.h"

namespace plait {

namespace {

using namespace nb::literals;

// A TraceScope that can be used again and again, by one thread at a time and not within itself.
class TraceSpan {
 public:
  TraceSpan(const std::string& name, const std::string& category, const std::vector<std::string>& args)
      : name_(trace_name(name, category, args)) {}

  void enter() {
    args_ = {};
    begin_ns_ = trace_is_on() ? monotonic_ns() : 0;
  }
  void exit() {
    if (begin_ns_ != 0) record_trace(*name_, begin_ns_, monotonic_ns(), args_);
    begin_ns_ = 0;
  }
  void set(int64_t a, int64_t b, int64_t c) { args_ = {a, b, c}; }
  void mark() const { mark_trace(*name_, args_); }

 private:
  const TraceName* name_;
  TraceArgs args_ = {};
  int64_t begin_ns_ = 0;  // 0: no trace ran when it was entered
};

}  // namespace

void register_trace(nb::module_& m) {
  nb::class_<TraceTotals>(m, "TraceTotals")
      .def_ro("num_events", &TraceTotals::num_events, "In the file.")
      .def_ro("num_dropped", &TraceTotals::num_dropped, "That did not fit into the memory or the file.")
      .def_ro("error", &TraceTotals::error, "Of writing the file; \"\" when all is well.");

  m.def(
      "start_trace",
      [](const std::string& path, int64_t max_file_bytes) {
        TraceLimits limits;
        if (max_file_bytes < 1) {
          throw Error(ErrorCode::kInvalidArgument, "a trace needs room: max_file_bytes must be positive");
        }
        limits.file_bytes = max_file_bytes;
        start_trace(path, limits);
      },
      "path"_a, "max_file_bytes"_a = TraceLimits{}.file_bytes,
      "Record what threads do from now on, into a new file for Perfetto. Raises NativeError when the file "
      "cannot be written or a trace runs already.");
  m.def("stop_trace", &stop_trace, nb::call_guard<nb::gil_scoped_release>(),
        "End the file. Without a trace: nothing happens. Releases the GIL.");
  m.def("trace_totals", &trace_totals, "Of the trace that runs, or of the last one.");
  m.def("trace_is_on", &trace_is_on);

  nb::class_<TraceSpan>(m, "TraceSpan",
                        "A context manager that records an event of its thread. One thread at a time, not "
                        "within itself. While no trace runs it does next to nothing.")
      .def(nb::init<const std::string&, const std::string&, const std::vector<std::string>&>(), "name"_a,
           "category"_a, "args"_a = std::vector<std::string>(),
           "args: names of up to three numbers. Raises NativeError for text that is not plain ASCII.")
      .def(
          "__enter__",
          [](nb::object self) {
            nb::cast<TraceSpan&>(self).enter();
            return self;
          },
          nb::sig("def __enter__(self) -> TraceSpan"))
      .def(
          "__exit__", [](TraceSpan& span, nb::args) { span.exit(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("set", &TraceSpan::set, "a"_a, "b"_a = 0, "c"_a = 0, "The numbers, once they are known.")
      .def("mark", &TraceSpan::mark, "Record a moment instead.");
}

}  // namespace plait
