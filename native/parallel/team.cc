#include "parallel/team.h"

#include <pthread.h>
#include <sched.h>

#include <string>

namespace plait {

namespace {

// About 20 us on current cores: ops of a step follow each other within this; a longer gap means idle.
constexpr int32_t kSpins = 2000;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool pin_this_thread(int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

void name_this_thread(const char* name) {
  pthread_setname_np(pthread_self(), std::string(name).substr(0, 15).c_str());
}

Team::Team(int32_t num_threads, const std::vector<int32_t>& cpus)
    : shares_(std::make_unique<Share[]>(static_cast<size_t>(num_threads))) {
  for (int32_t member = 1; member < num_threads; ++member) {
    const int32_t cpu = static_cast<size_t>(member) < cpus.size() ? cpus[static_cast<size_t>(member)] : -1;
    threads_.emplace_back([this, member, cpu] { member_loop(member, cpu); });
  }
}

Team::~Team() {
  is_stopping_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::work(int32_t member) {
  const int32_t num_members = num_threads();
  for (int32_t i = member; i < num_members; ++i) work_on(shares_[static_cast<size_t>(i)], member);
  for (int32_t i = 0; i < member; ++i) work_on(shares_[static_cast<size_t>(i)], member);
}

void Team::work_on(Share& share, int32_t member) {
  const auto next = [](uint64_t ticket) { return static_cast<int32_t>(ticket & 0xFFFFFFFFU); };
  const auto end = [](uint64_t ticket) { return static_cast<int32_t>(ticket >> 32); };
  for (;;) {
    // Looking first leaves the line of a share that is used up where it is.
    uint64_t ticket = share.ticket.load(std::memory_order_relaxed);
    if (next(ticket) >= end(ticket)) return;
    ticket = share.ticket.fetch_add(1, std::memory_order_acq_rel);
    const int32_t chunk = next(ticket);
    if (chunk >= end(ticket)) return;
    fn_(context_, chunk, member);
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
  }
}

void Team::run_job(int32_t num_chunks, ChunkFn fn, void* context) {
  if (num_chunks <= 0) return;
  if (threads_.empty() || num_chunks == 1) {
    for (int32_t chunk = 0; chunk < num_chunks; ++chunk) fn(context, chunk, 0);
    return;
  }
  fn_ = fn;
  context_ = context;
  remaining_.store(num_chunks, std::memory_order_relaxed);
  const auto num_members = static_cast<uint64_t>(num_threads());
  uint64_t begin = 0;
  for (uint64_t member = 0; member < num_members; ++member) {
    const uint64_t end = static_cast<uint64_t>(num_chunks) * (member + 1) / num_members;
    shares_[member].ticket.store(end << 32 | begin, std::memory_order_release);
    begin = end;
  }
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  work(0);
  for (int32_t spin = 0; remaining_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      cpu_relax();
      continue;
    }
    const int32_t left = remaining_.load(std::memory_order_acquire);
    if (left != 0) remaining_.wait(left, std::memory_order_acquire);
  }
}

void Team::member_loop(int32_t member, int32_t cpu) {
  if (cpu >= 0) pin_this_thread(cpu);
  name_this_thread(("plait-team-" + std::to_string(member)).c_str());
  uint32_t seen = 0;
  for (;;) {
    int32_t spin = 0;
    uint32_t now = 0;
    while ((now = epoch_.load(std::memory_order_acquire)) == seen) {
      if (spin++ < kSpins) {
        cpu_relax();
      } else {
        epoch_.wait(seen, std::memory_order_acquire);
      }
    }
    if (is_stopping_.load(std::memory_order_acquire)) return;
    seen = now;
    work(member);
  }
}

}  // namespace plait
