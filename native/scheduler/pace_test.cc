// A long prompt among running streams, on a simulated machine: how much it stretches the gaps of the streams,
// and how long it waits for its own first token.
#include <algorithm>
#include <deque>

#include "base/test.h"
#include "scheduler/simulated_engine.h"

using namespace plait;

namespace {

struct Pace {
  double undisturbed_p99_s = 0.0;
  double longest_gap_s = 0.0;
  double wait_s = 0.0;
};

Pace long_prompt_among(int32_t num_streams, double target_step_s) {
  SchedulerLimits limits;
  limits.max_batch_size = 16;
  limits.target_step_s = target_step_s;
  SimulatedEngine engine(limits);
  for (int64_t id = 1; id <= num_streams; ++id) engine.add(id, 100, 4000);
  for (int32_t i = 0; i < 40; ++i) engine.turn();
  std::vector<double> gaps;
  for (int32_t i = 0; i < 400; ++i) gaps.push_back(engine.turn());
  std::sort(gaps.begin(), gaps.end());
  Pace pace;
  pace.undisturbed_p99_s = gaps[gaps.size() * 99 / 100];
  engine.turn();
  const double begin_s = engine.now_s;
  engine.add(100, 6000, 4);
  while (!engine.first_token_s.contains(100))
    pace.longest_gap_s = std::max(pace.longest_gap_s, engine.turn());
  pace.wait_s = engine.first_token_s[100] - begin_s;
  return pace;
}

}  // namespace

TEST(a_long_prompt_stretches_no_gap_of_running_streams_far) {
  const double alone_s = long_prompt_among(0, 0.0).wait_s;
  for (const int32_t num_streams : {8, 12}) {
    const Pace pace = long_prompt_among(num_streams, 0.0);
    std::printf("%d streams: p99 %.1f ms, longest gap %.1f ms, first token %.2f s, alone %.2f s\n",
                num_streams, pace.undisturbed_p99_s * 1e3, pace.longest_gap_s * 1e3, pace.wait_s, alone_s);
    CHECK(pace.longest_gap_s < 2.5 * pace.undisturbed_p99_s);
    // The streams keep 1 / 2.2 of the time at most.
    CHECK(pace.wait_s < alone_s / (1.0 - 1.0 / 2.2) * 1.1);
  }
}

TEST(a_target_is_kept_whatever_the_context) {
  const Pace pace = long_prompt_among(8, 0.05);
  CHECK(pace.longest_gap_s < 0.05 * 1.3);
  CHECK(pace.wait_s < long_prompt_among(8, 0.0).wait_s);
}

TEST(contexts_that_grow_during_a_long_prompt_are_not_taken_for_its_costs) {
  SchedulerLimits limits;
  limits.max_batch_size = 16;
  SimulatedEngine engine(limits);
  for (int64_t id = 1; id <= 8; ++id) engine.add(id, 100, 8000);
  for (int32_t i = 0; i < 200; ++i) engine.turn();
  engine.add(100, 30'000, 4);
  int32_t num_probes = 0;
  int32_t num_steps = 0;
  std::deque<double> mixed_s;
  while (num_steps < 3000 && !engine.first_token_s.contains(100)) {
    const PlannedStep* plan = engine.scheduler.planned_step(false);
    const bool is_mixed = plan != nullptr && plan->load.num_prefills > 0 && plan->load.num_decodes > 0;
    const bool is_probe = plan != nullptr && plan->load.num_prefills == 0;
    const double seconds = engine.turn();
    ++num_steps;
    if (is_probe) ++num_probes;
    if (is_mixed && num_steps > 2500) mixed_s.push_back(seconds);
  }
  CHECK(num_probes > num_steps / 40 && num_probes < num_steps / 10);
  // By now a step of the decodes alone takes 2 + 8 * (0.8 + 2800 * 0.15e-3) = 11.8 ms.
  double sum_s = 0.0;
  for (const double seconds : mixed_s) sum_s += seconds;
  const double mean_s = sum_s / static_cast<double>(mixed_s.size());
  CHECK(mean_s > 1.9 * 11.8e-3 && mean_s < 2.4 * 11.8e-3);
}

TEST_MAIN()
