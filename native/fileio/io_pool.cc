#include "fileio/io_pool.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace plait {

namespace {

// One call to the kernel moves at most so much, so that a cancelled job ends soon.
constexpr size_t kMaxPieces = 64;
constexpr int64_t kMaxCallBytes = int64_t{8} << 20;

bool is_transfer(IoOp::Kind kind) { return kind == IoOp::Kind::kRead || kind == IoOp::Kind::kWrite; }

void fail(IoResult& result, const char* verb, const IoOp& op, int error_number) {
  result.error_number = error_number;
  result.error =
      std::string("cannot ") + verb + " " + std::to_string(op.num_bytes) + " bytes at " +
      std::to_string(op.offset) + ": " +
      (error_number == ENODATA ? "the file ends before" : std::generic_category().message(error_number));
}

// A run of reads or of writes that follow each other in one file, as one range with many pieces of memory.
struct Run {
  IoOp whole;  // kind, fd, range
  std::vector<iovec> pieces;
};

// Takes ops from `at` on; raises `at` beyond what it took. An op longer than kMaxCallBytes is taken in parts:
// `taken` is how much of ops[at] earlier runs have.
Run next_run(const std::vector<IoOp>& ops, size_t& at, int64_t& taken) {
  Run run;
  const IoOp& first = ops[at];
  run.whole.kind = first.kind;
  run.whole.fd = first.fd;
  run.whole.offset = first.offset + taken;
  while (at < ops.size() && run.pieces.size() < kMaxPieces && run.whole.num_bytes < kMaxCallBytes) {
    const IoOp& op = ops[at];
    if (op.kind != first.kind || op.fd != first.fd ||
        op.offset + taken != run.whole.offset + run.whole.num_bytes) {
      break;
    }
    const int64_t part = std::min(op.num_bytes - taken, kMaxCallBytes - run.whole.num_bytes);
    run.pieces.push_back({op.data + taken, static_cast<size_t>(part)});
    run.whole.num_bytes += part;
    taken += part;
    if (taken < op.num_bytes) break;
    taken = 0;
    ++at;
  }
  return run;
}

// The kernel may do less than asked for: goes on until everything is done. Returns errno or 0.
int transfer(Run& run) {
  int64_t offset = run.whole.offset;
  iovec* piece = run.pieces.data();
  iovec* const end = piece + run.pieces.size();
  while (piece < end) {
    if (piece->iov_len == 0) {
      ++piece;
      continue;
    }
    const auto num_pieces = static_cast<int>(end - piece);
    const ssize_t done = run.whole.kind == IoOp::Kind::kRead
                             ? ::preadv(run.whole.fd, piece, num_pieces, offset)
                             : ::pwritev(run.whole.fd, piece, num_pieces, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    if (done == 0) return run.whole.kind == IoOp::Kind::kRead ? ENODATA : ENOSPC;
    offset += done;
    for (auto left = static_cast<size_t>(done); left > 0;) {
      const size_t part = std::min(left, piece->iov_len);
      piece->iov_base = static_cast<std::byte*>(piece->iov_base) + part;
      piece->iov_len -= part;
      left -= part;
      if (piece->iov_len == 0) ++piece;
    }
  }
  return 0;
}

int allocate(const IoOp& op, int mode) {
  int rc;
  do {
    rc = ::fallocate(op.fd, mode, op.offset, op.num_bytes);
  } while (rc != 0 && errno == EINTR);
  return rc == 0 || errno == EOPNOTSUPP || errno == ENOSYS ? 0 : errno;
}

// False when the job ends here.
bool run_single(const IoOp& op, IoResult& result) {
  int error_number = 0;
  const char* verb = "sync";
  switch (op.kind) {
    case IoOp::Kind::kSync:
      error_number = ::fdatasync(op.fd) == 0 ? 0 : errno;
      break;
    case IoOp::Kind::kReserve:
      verb = "reserve";
      error_number = allocate(op, FALLOC_FL_KEEP_SIZE);
      break;
    case IoOp::Kind::kPunch:
      verb = "free";
      error_number = allocate(op, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE);
      break;
    default:
      op.call();
  }
  if (error_number != 0) fail(result, verb, op, error_number);
  return error_number == 0;
}

IoResult run_job(IoJob& job) {
  IoResult result;
  result.begin_ns = monotonic_ns();
  size_t at = 0;
  int64_t taken = 0;
  try {
    while (at < job.ops.size()) {
      if (job.cancelled && job.cancelled->load(std::memory_order_acquire)) {
        result.is_cancelled = true;
        result.error = "cancelled";
        break;
      }
      if (!is_transfer(job.ops[at].kind)) {
        if (!run_single(job.ops[at++], result)) break;
        continue;
      }
      Run run = next_run(job.ops, at, taken);
      const int error_number = transfer(run);
      if (error_number != 0) {
        fail(result, run.whole.kind == IoOp::Kind::kRead ? "read" : "write", run.whole, error_number);
        break;
      }
      result.num_bytes += run.whole.num_bytes;
    }
  } catch (const std::exception& e) {
    result.error = e.what();
    if (result.error.empty()) result.error = "failed";
  }
  result.end_ns = monotonic_ns();
  return result;
}

IoOp range(IoOp::Kind kind, int fd, int64_t offset, int64_t num_bytes) {
  IoOp op;
  op.kind = kind;
  op.fd = fd;
  op.offset = offset;
  op.num_bytes = num_bytes;
  return op;
}

}  // namespace

IoOp IoOp::read(int fd, int64_t offset, std::span<std::byte> into) {
  IoOp op = range(Kind::kRead, fd, offset, static_cast<int64_t>(into.size()));
  op.data = into.data();
  return op;
}

IoOp IoOp::write(int fd, int64_t offset, std::span<const std::byte> from) {
  IoOp op = range(Kind::kWrite, fd, offset, static_cast<int64_t>(from.size()));
  op.data = const_cast<std::byte*>(from.data());  // pwritev only reads it
  return op;
}

IoOp IoOp::sync(int fd) { return range(Kind::kSync, fd, 0, 0); }

IoOp IoOp::reserve(int fd, int64_t offset, int64_t num_bytes) {
  return range(Kind::kReserve, fd, offset, num_bytes);
}

IoOp IoOp::punch(int fd, int64_t offset, int64_t num_bytes) {
  return range(Kind::kPunch, fd, offset, num_bytes);
}

IoOp IoOp::run(std::function<void()> call) {
  IoOp op;
  op.call = std::move(call);
  return op;
}

IoPool::IoPool(int32_t num_threads, size_t depth) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw Error(ErrorCode::kInvalidArgument, "an I/O pool needs 1 to " + std::to_string(kMaxThreads) +
                                                 " threads, got " + std::to_string(num_threads));
  }
  for (int32_t i = 0; i < num_threads; ++i) lanes_.push_back(std::make_unique<Lane>(depth));
  try {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      lanes_[i]->thread = std::thread([this, i] { loop(*lanes_[i], i); });
    }
  } catch (const std::system_error& e) {
    stop();
    throw Error(ErrorCode::kSystem, std::string("cannot start a thread of the I/O pool: ") + e.what());
  }
}

IoPool::~IoPool() { stop(); }

void IoPool::stop() {
  for (auto& lane : lanes_) lane->jobs.close();
  for (auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
}

bool IoPool::try_submit(IoJob&& job, int32_t lane_idx) {
  if (lane_idx < 0 || lane_idx >= num_threads()) {
    throw Error(ErrorCode::kInvalidArgument, "there is no lane " + std::to_string(lane_idx) +
                                                 " in an I/O pool of " + std::to_string(num_threads()));
  }
  return lanes_[static_cast<size_t>(lane_idx)]->jobs.try_push(std::move(job));
}

void IoPool::loop(Lane& lane, size_t lane_idx) {
  pthread_setname_np(pthread_self(), ("plait-file-" + std::to_string(lane_idx)).c_str());
  for (;;) {
    IoJob job;
    if (!lane.jobs.try_pop(job)) {
      static constexpr TraceName kTrace = {"wait", "io"};
      const TraceScope trace(kTrace);
      if (!lane.jobs.wait_pop(job, -1)) return;
    }
    const IoResult result = run_job(job);
    if (job.trace != nullptr) record_trace(*job.trace, result.begin_ns, result.end_ns, job.trace_args);
    if (job.done) job.done(result);
  }
}

}  // namespace plait
