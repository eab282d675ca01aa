#include "parallel/messenger_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "base/clock.h"

namespace plait {

namespace {

// The least that the kernel takes.
constexpr uint64_t kSliceNs = 100'000;
constexpr int32_t kNice = -20;  // the least that there is

// struct sched_attr of sched_setattr(2), as of its first version; glibc does not declare it before 2.41.
struct SchedAttr {
  uint32_t size = sizeof(SchedAttr);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;  // of the normal policy: the slice
  uint64_t deadline = 0;
  uint64_t period = 0;
};

constexpr uint32_t kNormalPolicy = 0;
constexpr uint32_t kRoundRobinPolicy = 2;
constexpr uint32_t kLeastRealtimePriority = 1;
// Threads that this one starts get neither.
constexpr uint64_t kResetOnFork = 1;

// All of this thread.
bool try_get(SchedAttr& attr) { return syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) == 0; }

bool try_set(SchedAttr attr) {
  attr.flags = kResetOnFork;
  return syscall(SYS_sched_setattr, 0, &attr, 0) == 0;
}

bool try_set_normal(int32_t nice) {
  SchedAttr attr;
  attr.policy = kNormalPolicy;
  attr.nice = nice;
  attr.runtime = kSliceNs;
  return try_set(attr);
}

bool try_set_realtime() {
  SchedAttr attr;
  attr.policy = kRoundRobinPolicy;
  attr.priority = kLeastRealtimePriority;
  return try_set(attr);
}

int64_t used_cpu_ns() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

void keep_off(size_t cpu) {
  cpu_set_t set;
  if (cpu >= CPU_SETSIZE || pthread_getaffinity_np(pthread_self(), sizeof(set), &set) != 0) return;
  CPU_CLR(cpu, &set);
  if (CPU_COUNT(&set) > 0) pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

bool favour_messenger_thread(int32_t off_cpu) {
  if (off_cpu >= 0) keep_off(static_cast<size_t>(off_cpu));
  SchedAttr before;
  if (!try_get(before) || before.policy != kNormalPolicy) return false;
  // Whoever started the process with a positive nice value wants others to go first.
  const int32_t nice = before.nice > 0 ? before.nice : kNice;
  if (!try_set_normal(nice) && !try_set_normal(before.nice)) return false;
  // A kernel that knows no slices takes the call and ignores them.
  SchedAttr now;
  return try_get(now) && (now.runtime == kSliceNs || now.nice < before.nice);
}

RealtimeMessenger::RealtimeMessenger(int32_t off_cpu)
    : window_begin_ns_(monotonic_ns()), used_before_ns_(used_cpu_ns()) {
  favour_messenger_thread(off_cpu);
  SchedAttr normal;
  if (!try_get(normal) || normal.policy != kNormalPolicy || normal.nice > 0) return;
  // A limit of CPU time without a sleep for such threads: at its end the kernel kills the process.
  rlimit time{};
  if (getrlimit(RLIMIT_RTTIME, &time) != 0 || time.rlim_cur != RLIM_INFINITY) return;
  nice_ = normal.nice;
  may_be_realtime_ = is_realtime_ = try_set_realtime();
}

void RealtimeMessenger::check() {
  if (!may_be_realtime_) return;
  const int64_t now_ns = monotonic_ns();
  const int64_t window_ns = now_ns - window_begin_ns_;
  if (window_ns < kWindowNs) return;
  const int64_t used_ns = used_cpu_ns();
  const bool is_busy = used_ns - used_before_ns_ > window_ns / 4;
  window_begin_ns_ = now_ns;
  used_before_ns_ = used_ns;
  if (is_busy && is_realtime_) {
    is_realtime_ = !try_set_normal(nice_);
  } else if (!is_busy && !is_realtime_) {
    is_realtime_ = try_set_realtime();
  }
}

}  // namespace plait
