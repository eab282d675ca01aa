// When the step after the one that runs should be planned: so late that what comes and ends meanwhile is part
// of the plan, so early that compute never waits for it.
//
// A step runs for its predicted time, more or less: the plan is due when the shortest of the last steps, as a
// share of its prediction, would end. A step that ends sooner costs compute a wait once and makes the plan
// early from then on; every step that does not lets it come a little later.
//
// Owner: the thread that schedules. Times are nanoseconds of CLOCK_MONOTONIC.
#pragma once

#include <cstdint>

namespace plait {

class PlanTimer {
 public:
  // A step begins that should take `predicted_s`; 0: nobody knows, the plan is due at once.
  void on_begin(int64_t now_ns, double predicted_s);
  // It ended, after `step_s`.
  void on_end(double step_s);
  int64_t due_ns() const { return due_ns_; }

 private:
  double predicted_s_ = 0.0;
  double shortest_share_ = 0.8;
  int64_t due_ns_ = 0;
};

}  // namespace plait
