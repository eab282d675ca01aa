// File operations that run in the background. Knows: descriptors, ranges of bytes, how to wait for the
// kernel. Must not know: what the bytes mean.
//
// A job is a list of operations that run one after the other on one thread until one fails; reads and writes
// that follow each other in the same file go to the kernel as one. Each thread is a lane: jobs of a lane run
// in the order in which they were submitted, lanes run side by side. An idle pool sleeps. Lane i is the
// thread plait-file-i.
//
// Threads: any thread submits; a job's operations and its `done` run on the lane's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sync/channel.h"
#include "sync/mpsc_ring.h"
#include "trace/trace.h"

namespace plait {

struct IoOp {
  enum class Kind : uint8_t { kRead, kWrite, kSync, kReserve, kPunch, kCall };
  Kind kind = Kind::kCall;
  int fd = -1;
  int64_t offset = 0;
  std::byte* data = nullptr;
  int64_t num_bytes = 0;
  std::function<void()> call;

  // Fills the whole range; a file that ends before is an error. The caller keeps descriptor and memory alive
  // until `done`.
  static IoOp read(int fd, int64_t offset, std::span<std::byte> into);
  // Writes the whole range.
  static IoOp write(int fd, int64_t offset, std::span<const std::byte> from);
  // What was written reaches the disk (fdatasync).
  static IoOp sync(int fd);
  // Takes room on the disk for a range, so that a full disk shows now. Does nothing where the file system
  // cannot say.
  static IoOp reserve(int fd, int64_t offset, int64_t num_bytes);
  // Gives the room of a range back; it reads as zeros. Does nothing where the file system cannot.
  static IoOp punch(int fd, int64_t offset, int64_t num_bytes);
  // Any work on the lane's thread; an exception fails the job with its message.
  static IoOp run(std::function<void()> call);
};

struct IoResult {
  std::string error;     // empty: everything was done
  int error_number = 0;  // of the system call that failed; 0 for other errors
  bool is_cancelled = false;
  int64_t num_bytes = 0;  // read and written
  int64_t begin_ns = 0;   // CLOCK_MONOTONIC
  int64_t end_ns = 0;
};

struct IoJob {
  std::vector<IoOp> ops;
  std::function<void(const IoResult&)> done;  // may be empty; must not throw
  // When set and true, the job ends (is_cancelled) before its next call to the kernel.
  std::shared_ptr<const std::atomic<bool>> cancelled;
  // How the job is called in a trace, or null: it is not recorded.
  const TraceName* trace = nullptr;
  TraceArgs trace_args = {};
};

class IoPool {
 public:
  static constexpr size_t kDefaultDepth = 256;
  static constexpr int32_t kMaxThreads = 16;

  // `depth`: jobs that may wait in a lane. Throws Error(kInvalidArgument) for sizes out of range.
  explicit IoPool(int32_t num_threads, size_t depth = kDefaultDepth);
  // Runs what was submitted and joins.
  ~IoPool();
  IoPool(const IoPool&) = delete;
  IoPool& operator=(const IoPool&) = delete;

  // False when the lane is full; `job` is then unchanged. Never blocks. Throws Error(kInvalidArgument) for a
  // lane that does not exist.
  bool try_submit(IoJob&& job, int32_t lane = 0);

  int32_t num_threads() const { return static_cast<int32_t>(lanes_.size()); }
  // Any thread; a snapshot of the jobs that wait in a lane.
  size_t num_waiting(int32_t lane) const { return lanes_[static_cast<size_t>(lane)]->jobs.size(); }

 private:
  struct Lane {
    explicit Lane(size_t depth) : jobs(depth, kSpinNs) {}
    Channel<MpscRing<IoJob>> jobs;
    std::thread thread;
  };
  void loop(Lane& lane, size_t lane_idx);
  void stop();

  static constexpr int64_t kSpinNs = 0;  // a file takes longer than a wake-up

  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace plait
