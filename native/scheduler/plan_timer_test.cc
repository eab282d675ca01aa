#include "scheduler/plan_timer.h"

#include <random>

#include "base/test.h"
#include "scheduler/simulated_engine.h"

using namespace plait;

namespace {

constexpr int64_t kMs = 1'000'000;

// An engine that knows what its steps cost, with 8 streams that go on for long.
std::unique_ptr<SimulatedEngine> busy_engine() {
  SchedulerLimits limits;
  limits.max_batch_size = 16;
  auto engine = std::make_unique<SimulatedEngine>(limits);
  for (int64_t id = 1; id <= 8; ++id) engine->add(id, 100, 2000);
  for (int32_t i = 0; i < 100; ++i) engine->turn();
  return engine;
}

}  // namespace

TEST(a_step_that_nobody_can_predict_is_planned_for_at_once) {
  PlanTimer timer;
  timer.on_begin(5 * kMs, 0.0);
  CHECK_EQ(timer.due_ns(), 5 * kMs);
  timer.on_end(0.01);
  timer.on_begin(15 * kMs, 0.0);
  CHECK_EQ(timer.due_ns(), 15 * kMs);
}

TEST(a_step_shorter_than_planning_takes_is_planned_for_at_once) {
  PlanTimer timer;
  timer.on_begin(5 * kMs, 0.5e-3);
  CHECK_EQ(timer.due_ns(), 5 * kMs);
}

TEST(a_plan_is_due_shortly_before_the_shortest_steps_end) {
  PlanTimer timer;
  std::mt19937 rng(5);
  std::normal_distribution<double> noise(1.0, 0.05);
  int32_t num_late = 0;
  double early_s = 0.0;
  for (int32_t i = 0; i < 4000; ++i) {
    const double step_s = 0.05 * noise(rng);
    timer.on_begin(0, 0.05);
    const double due_s = static_cast<double>(timer.due_ns()) * 1e-9;
    if (due_s > step_s) ++num_late;
    early_s += step_s - due_s;
    timer.on_end(step_s);
  }
  const double mean_early_s = early_s / 4000;
  std::printf("%d of 4000 late, %.1f ms early\n", num_late, mean_early_s * 1e3);
  CHECK(num_late < 200);
  CHECK(mean_early_s > 1e-3 && mean_early_s < 0.2 * 0.05);
}

TEST(a_machine_that_gets_faster_is_late_once) {
  PlanTimer timer;
  const auto due_after = [&](double step_s) {
    timer.on_begin(0, 0.05);
    timer.on_end(step_s);
    timer.on_begin(0, 0.05);
    return static_cast<double>(timer.due_ns()) * 1e-9;
  };
  for (int32_t i = 0; i < 200; ++i) due_after(0.05);
  CHECK(due_after(0.05) > 0.045);
  CHECK(due_after(0.025) < 0.025);
  // And a step of hardly any time, such as one that failed, does not make it plan at once for long.
  CHECK(due_after(1e-6) >= 0.3 * 0.05 - 1.1e-3);
}

TEST(steps_of_no_time_teach_nothing) {
  PlanTimer timer;
  timer.on_begin(0, 0.05);
  const int64_t due_ns = timer.due_ns();
  timer.on_end(0.0);
  timer.on_begin(0, 0.05);
  CHECK_EQ(timer.due_ns(), due_ns);
}

TEST(the_scheduler_plans_late_and_says_when) {
  const auto engine = busy_engine();
  Scheduler& scheduler = engine->scheduler;
  StepInput step;
  // What is in flight: nothing, or the step that was planned for now.
  while (scheduler.num_planned() == 0) CHECK(scheduler.schedule(engine->now_ns(), step));
  CHECK(!scheduler.schedule(engine->now_ns(), step));
  const int64_t due_ns = scheduler.next_wakeup_ns(true);
  CHECK(due_ns > engine->now_ns() + 3 * kMs);  // of a step of 10 ms
  CHECK_EQ(scheduler.next_wakeup_ns(false), -1);
  CHECK(!scheduler.schedule(due_ns - 1, step));
  engine->add(100, 30, 4);  // comes meanwhile and is taken along
  CHECK(scheduler.schedule(due_ns, step));
  CHECK(scheduler.planned_step(true)->load.num_prefills > 0);
  CHECK_EQ(scheduler.next_wakeup_ns(true), -1);
}

TEST(compute_hardly_ever_waits_for_a_plan) {
  const auto engine = busy_engine();
  const int32_t num_waits = engine->num_waits;
  std::mt19937 rng(7);
  for (int32_t i = 0; i < 600; ++i) {
    if (i % 5 == 0) engine->add(1000 + i, 20 + static_cast<int32_t>(rng() % 300), 10);
    engine->turn();
  }
  std::printf("%d waits in 600 steps\n", engine->num_waits - num_waits);
  CHECK(engine->num_waits - num_waits < 30);
}

TEST_MAIN()
