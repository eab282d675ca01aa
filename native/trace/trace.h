// What each thread did when, as a file for Perfetto or Chrome's tracing page. Knows: lanes, events, the file.
// Must not know: what the events stand for.
//
// Each thread that records has a lane: a bounded ring that it alone writes, without a lock and, after its
// first event, without an allocation. One thread of the trace empties the rings every few milliseconds into
// the file, so that a run of any length is traced in bounded memory. What finds its ring full, and what
// would make the file longer than its limit, is counted, and the file says how much that was.
// While no trace runs, recording is one relaxed load.
//
// Threads: start_trace and stop_trace are called by one thread at a time; everything else by any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace plait {

inline constexpr size_t kMaxTraceArgs = 3;
using TraceArgs = std::array<int64_t, kMaxTraceArgs>;

// What events of one kind have in common. Text is written to the file as it stands: printable ASCII without
// quotes and backslashes. Must outlive the trace: a constant, or from trace_name().
struct TraceName {
  const char* name;
  const char* category;
  std::array<const char*, kMaxTraceArgs> args = {};  // names of the numbers; the first null ends them
};

// A name that stays for the life of the process; equal ones are one. Throws Error(kInvalidArgument) for text
// that the file cannot hold or more than kMaxTraceArgs numbers. Takes a lock.
const TraceName* trace_name(const std::string& name, const std::string& category,
                            const std::vector<std::string>& args);

struct TraceLimits {
  size_t lane_events = 1 << 14;  // that a thread can record before they are fetched
  int64_t file_bytes = int64_t{1} << 30;
  int64_t flush_ns = 20'000'000;  // between two fetches
};

struct TraceTotals {
  int64_t num_events = 0;   // in the file
  int64_t num_dropped = 0;  // that did not fit
  std::string error;        // of writing the file; empty: all is well
};

// Begins a new file (one that is there is replaced). Throws Error(kSystem) when it cannot be opened and
// Error(kInvalidArgument) when a trace runs already. Starts a thread.
void start_trace(const std::string& path, const TraceLimits& limits = {});
// Ends the file, which is valid JSON then. Joins the thread. Without a trace: does nothing. Events that other
// threads record at the same moment may be missing.
TraceTotals stop_trace();
// Of the trace that runs, or of the last one.
TraceTotals trace_totals();

namespace trace_detail {

inline std::atomic<bool> is_on{false};
// The innermost open scope of this thread.
inline thread_local const TraceName* current = nullptr;

void record(const TraceName& name, int64_t begin_ns, int64_t end_ns, const TraceArgs& args);

}  // namespace trace_detail

// Relaxed: a thread that sees a start or a stop late records a few events less or more.
inline bool trace_is_on() { return trace_detail::is_on.load(std::memory_order_relaxed); }

// An event of this thread from begin_ns to end_ns (CLOCK_MONOTONIC). Events of a thread must nest. The first
// event of a thread allocates its lane, which has the thread's name at that moment. Never blocks otherwise.
inline void record_trace(const TraceName& name, int64_t begin_ns, int64_t end_ns,
                         const TraceArgs& args = {}) {
  if (trace_is_on()) trace_detail::record(name, begin_ns, end_ns, args);
}

// A moment of this thread.
inline void mark_trace(const TraceName& name, const TraceArgs& args = {}) {
  if (trace_is_on()) trace_detail::record(name, monotonic_ns(), -1, args);
}

// The innermost scope that this thread is in while a trace runs, or null.
inline const TraceName* current_trace_name() { return trace_detail::current; }

// An event that lasts as long as the object. `name` must outlive the trace.
class TraceScope {
 public:
  explicit TraceScope(const TraceName& name, const TraceArgs& args = {}) {
    if (trace_is_on()) begin(name, args);
  }
  ~TraceScope() {
    if (name_ != nullptr) end();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  // Numbers that are known only later.
  void set_args(const TraceArgs& args) {
    if (name_ != nullptr) args_ = args;
  }

 private:
  void begin(const TraceName& name, const TraceArgs& args) {
    name_ = &name;
    args_ = args;
    outer_ = trace_detail::current;
    trace_detail::current = name_;
    begin_ns_ = monotonic_ns();
  }
  void end() {
    trace_detail::current = outer_;
    record_trace(*name_, begin_ns_, monotonic_ns(), args_);
  }

  const TraceName* name_ = nullptr;  // null: no trace ran when the scope began
  const TraceName* outer_;
  int64_t begin_ns_;
  TraceArgs args_;
};

}  // namespace plait
