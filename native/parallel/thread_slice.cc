#include "parallel/thread_slice.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace plait {

namespace {

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

}  // namespace

bool set_thread_slice(int64_t slice_ns) {
  SchedAttr attr{};
  if (slice_ns <= 0 || syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) != 0) return false;
  if (attr.policy != kNormalPolicy) return false;  // somebody chose another one on purpose
  attr.size = sizeof(attr);
  attr.flags = 0;
  attr.runtime = static_cast<uint64_t>(slice_ns);
  if (syscall(SYS_sched_setattr, 0, &attr, 0) != 0) return false;
  SchedAttr now{};
  return syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) == 0 && now.runtime == attr.runtime;
}

}  // namespace plait
