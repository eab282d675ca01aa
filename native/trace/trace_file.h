// Writes events as Chrome's trace event format (JSON object form). Knows: the format, the length of the file.
// Must not know: threads, where events come from.
//
// Owner: one thread at a time. Never throws after construction: what cannot be written is counted.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "trace/trace.h"

namespace plait {

struct TraceEvent {
  const TraceName* name = nullptr;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;  // -1: a moment
  TraceArgs args = {};
};

class TraceFile {
 public:
  // Replaces the file at `path`. Times are written relative to `start_ns`. Throws Error(kSystem).
  TraceFile(const std::string& path, int64_t start_ns, int64_t max_bytes);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // An event of the thread `tid`. One that does not fit any more, or cannot be written, is counted as
  // dropped.
  void write(const TraceEvent& event, int32_t tid);
  // Says at this place of the lane that `num_dropped` events are missing, and counts them.
  void write_dropped(int32_t tid, int64_t now_ns, int64_t num_dropped);
  // The name of a lane. Written even when the file is full.
  void write_thread(int32_t tid, const std::string& name);
  // Ends the JSON. Idempotent.
  void close();

  const TraceTotals& totals() const { return totals_; }

 private:
  void put(const char* text, size_t size);
  void put_line(const char* text, size_t size);
  void fail(const char* what);

  std::FILE* file_;
  int64_t pid_;
  int64_t start_ns_;
  int64_t max_bytes_;
  int64_t num_bytes_ = 0;
  bool has_lines_ = false;
  TraceTotals totals_;
};

}  // namespace plait
