// Threads that pass messages work for some microseconds now and then, beside compute threads that never sleep
// under load. Knows: Linux's fair scheduler.
#pragma once

namespace plait {

// Lets the calling thread have the CPU soon whenever it wakes. Two things are asked of the kernel:
// - a short slice: who has one may interrupt who is in the middle of a long one (from Linux 6.12);
// - a nice value of -20, where it is permitted (CAP_SYS_NICE or RLIMIT_NICE): the fair scheduler makes a
//   thread wait that got more than its share a moment ago, as every messenger did that just handled the
//   results of a step. The larger the share, the shorter that wait.
// False when neither was granted, or somebody chose another scheduling policy on purpose: then it waits for
// the kernel's next tick (1 to 10 ms) more often.
bool favour_messenger_thread();

}  // namespace plait
