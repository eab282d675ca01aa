#include "parallel/messenger_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace plait {

namespace {

// The least that the kernel takes.
constexpr uint64_t kSliceNs = 100'000;
constexpr int32_t kNice = -20;

// struct sched_attr of sched_setattr(2), as of its first version; glibc does not declare it before 2.41.
struct SchedAttr {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;  // of the normal policy: the slice
  uint64_t deadline;
  uint64_t period;
};

constexpr uint32_t kNormalPolicy = 0;
// Threads that this one starts get neither.
constexpr uint64_t kResetOnFork = 1;

bool try_set(SchedAttr attr) {
  attr.size = sizeof(attr);
  attr.flags = kResetOnFork;
  return syscall(SYS_sched_setattr, 0, &attr, 0) == 0;
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
  SchedAttr before{};
  if (syscall(SYS_sched_getattr, 0, &before, sizeof(before), 0) != 0) return false;
  if (before.policy != kNormalPolicy) return false;
  SchedAttr wanted = before;
  wanted.runtime = kSliceNs;
  wanted.nice = std::min(before.nice, kNice);
  if (!try_set(wanted)) {
    wanted.nice = before.nice;
    if (!try_set(wanted)) return false;
  }
  // A kernel that knows no slices takes the call and ignores them.
  SchedAttr now{};
  if (syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) != 0) return false;
  return now.runtime == kSliceNs || now.nice < before.nice;
}

}  // namespace plait
