#include "parallel/crew.h"

namespace plait {

// One event for the consecutive chunks of a job that a worker ran, named after what the job's owner does.
class WorkTrace {
 public:
  ~WorkTrace() { end(); }
  // A chunk of a job begins.
  void see(const TraceName* name) {
    if (name != name_) {
      end();
      name_ = name;
      begin_ns_ = monotonic_ns();
    }
  }

 private:
  void end() {
    if (name_ != nullptr) record_trace(*name_, begin_ns_, monotonic_ns());
  }

  const TraceName* name_ = nullptr;
  int64_t begin_ns_ = 0;
};

Crew::Crew(int32_t max_members, JobBell& bell)
    : bell_(bell),
      num_members_(max_members),
      shares_(std::make_unique<Share[]>(static_cast<size_t>(max_members))),
      ahead_(std::make_unique<Ahead[]>(static_cast<size_t>(max_members))) {}

void Crew::assign(int32_t first_member, int32_t num_members, int32_t num_helpers) {
  first_member_ = first_member;
  num_members_ = num_members;
  num_helpers_ = num_helpers;
}

void Crew::work(int32_t member) {
  if (!trace_is_on()) return work_on_shares(member, nullptr);
  WorkTrace trace;
  work_on_shares(member, &trace);
}

bool Crew::fetch_ahead(int32_t member) {
  constexpr size_t kLine = 64;
  constexpr size_t kAtOnce = 8 * kLine;
  const int32_t own = member - first_member_;
  if (own < 0 || own >= num_members_) return false;
  Ahead& ahead = ahead_[static_cast<size_t>(own)];
  const std::byte* begin = ahead.begin.load(std::memory_order_relaxed);
  if (begin != ahead.of) {
    ahead.of = begin;
    ahead.num_fetched = 0;
  }
  if (ahead.num_fetched >= ahead.num_bytes.load(std::memory_order_relaxed)) return false;
  for (size_t i = 0; i < kAtOnce; i += kLine) __builtin_prefetch(begin + ahead.num_fetched + i, 0, 2);
  ahead.num_fetched += kAtOnce;
  return true;
}

void Crew::work_on_shares(int32_t member, WorkTrace* trace) {
  const int32_t own = member - first_member_;
  const int32_t start = own >= 0 && own < num_members_ ? own : 0;
  for (int32_t i = start; i < num_members_; ++i) work_on(shares_[static_cast<size_t>(i)], member, trace);
  for (int32_t i = 0; i < start; ++i) work_on(shares_[static_cast<size_t>(i)], member, trace);
}

void Crew::work_on(Share& share, int32_t member, WorkTrace* trace) {
  const auto next = [](uint64_t ticket) { return static_cast<int32_t>(ticket & 0xFFFFFFFFU); };
  const auto end = [](uint64_t ticket) { return static_cast<int32_t>(ticket >> 32); };
  for (;;) {
    // Looking first leaves the line of a share that is used up where it is.
    uint64_t ticket = share.ticket.load(std::memory_order_relaxed);
    if (next(ticket) >= end(ticket)) return;
    ticket = share.ticket.fetch_add(1, std::memory_order_acq_rel);
    const int32_t chunk = next(ticket);
    if (chunk >= end(ticket)) return;
    if (trace != nullptr) trace->see(trace_name_);
    fn_(context_, chunk, member);
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
  }
}

void Crew::run_job(int32_t num_chunks, ChunkFn fn, void* context) {
  if (num_chunks <= 0) return;
  if (num_workers() == 1 || num_chunks == 1) {
    for (int32_t chunk = 0; chunk < num_chunks; ++chunk) fn(context, chunk, first_member_);
    return;
  }
  fn_ = fn;
  context_ = context;
  trace_name_ = trace_is_on() ? current_trace_name() : nullptr;
  remaining_.store(num_chunks, std::memory_order_relaxed);
  const auto num_members = static_cast<uint64_t>(num_members_);
  uint64_t begin = 0;
  for (uint64_t member = 0; member < num_members; ++member) {
    const uint64_t end = static_cast<uint64_t>(num_chunks) * (member + 1) / num_members;
    shares_[member].ticket.store(end << 32 | begin, std::memory_order_release);
    begin = end;
  }
  bell_.ring();
  work_on_shares(first_member_, nullptr);  // the owner's own events say what it does
  for (int32_t spin = 0; remaining_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < JobBell::kSpins) {
      if (!fetch_ahead(first_member_)) cpu_relax();
      continue;
    }
    const int32_t left = remaining_.load(std::memory_order_acquire);
    if (left != 0) remaining_.wait(left, std::memory_order_acquire);
  }
}

}  // namespace plait
