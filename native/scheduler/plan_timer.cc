#include "scheduler/plan_timer.h"

#include <algorithm>

namespace plait {

namespace {

// Waking the thread that plans, planning and handing over take this long at most, usually.
constexpr double kPlanningS = 1e-3;
// What a step that does not end early adds to the share. A plan is then some tenth of a step early while the
// length of steps scatters by a twentieth.
constexpr double kRecovery = 0.002;
constexpr double kLeastShare = 0.3;

}  // namespace

void PlanTimer::on_begin(int64_t now_ns, double predicted_s) {
  predicted_s_ = predicted_s;
  due_ns_ = now_ns + static_cast<int64_t>(std::max(shortest_share_ * predicted_s - kPlanningS, 0.0) * 1e9);
}

void PlanTimer::on_end(double step_s) {
  if (predicted_s_ <= 0.0 || step_s <= 0.0) return;
  shortest_share_ =
      std::clamp(step_s / predicted_s_, kLeastShare, std::min(shortest_share_ + kRecovery, 1.0));
}

}  // namespace plait
