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

Team::Team(int32_t num_threads, const std::vector<int32_t>& cpus) {
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
  for (;;) {
    const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    const auto chunk = static_cast<int32_t>(ticket & 0xFFFFFFFFU);
    if (chunk >= static_cast<int32_t>(ticket >> 32)) return;
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
  ticket_.store(static_cast<uint64_t>(num_chunks) << 32, std::memory_order_release);
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
