// Threads that pass messages work for some microseconds now and then, beside compute threads that never sleep
// under load. Knows: Linux's scheduling policies.
#pragma once

#include <cstdint>

namespace plait {

// Lets the calling thread have a CPU soon whenever it wakes. Three things are asked of the kernel:
// - a short slice: who has one may interrupt who is in the middle of a long one (from Linux 6.12);
// - a nice value of -20, where it is permitted (CAP_SYS_NICE or RLIMIT_NICE) and it is not above 0: the fair
//   scheduler makes a thread wait that got more than its share a moment ago, as every messenger did that just
//   handled the results of a step. The larger the share, the shorter that wait;
// - any CPU but `off_cpu` (-1: any), unless there is no other: where the first compute thread is pinned. The
//   end of a step wakes the messengers, often on the CPU that wakes them, and then the next step begins when
//   they have ended. On another CPU they take the time of one thread of the team, and only while a step runs.
// False when neither of the first two was granted, or somebody chose another scheduling policy on purpose:
// then it waits for the kernel's next tick (1 to 10 ms) more often.
bool favour_messenger_thread(int32_t off_cpu = -1);

// A messenger that runs only the engine's own code, and that every step and every request waits for: favoured
// as above, and before any thread of the fair scheduler, which then cannot make it wait at all (SCHED_RR,
// where CAP_SYS_NICE or RLIMIT_RTPRIO permits it, nice is not above 0 and RLIMIT_RTTIME sets no limit).
//
// Such a thread could keep a compute thread from its CPU. So it gives the policy back while it is busy: when
// it used more than a quarter of a CPU within the last window. That is seen when it wakes: a turn that does
// not end meets only the kernel's own limit for such threads (95 % of a CPU).
//
// Owner: the thread that makes it, which calls everything.
class RealtimeMessenger {
 public:
  static constexpr int64_t kWindowNs = 100'000'000;

  explicit RealtimeMessenger(int32_t off_cpu = -1);

  // Whenever it wakes; reads a clock, and no more than that within a window.
  void check();
  bool is_realtime() const { return is_realtime_; }

 private:
  bool may_be_realtime_ = false;
  bool is_realtime_ = false;
  int32_t nice_ = 0;  // without the policy
  int64_t window_begin_ns_ = 0;
  int64_t used_before_ns_ = 0;  // CPU time of the thread when the window began
};

}  // namespace plait
