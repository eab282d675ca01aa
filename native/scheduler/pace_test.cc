// A long prompt among running streams, on a simulated machine: how much it stretches the gaps of the streams,
// and how long it waits for its own first token.
#include <algorithm>
#include <deque>

#include "base/test.h"
#include "scheduler/simulated_engine.h"

using namespace plait;

namespace {

struct Pace {
  double undisturbed_p99_s = 0.0;  // of the same tokens, without the prompt
  double longest_gap_s = 0.0;
  double wait_s = 0.0;
};

double p99(std::vector<double> gaps) {
  std::sort(gaps.begin(), gaps.end());
  return gaps[gaps.size() * 99 / 100];
}

void begin_streams(SimulatedEngine& engine, int32_t num_streams) {
  for (int64_t id = 1; id <= num_streams; ++id) engine.add(id, 100, 4000);
  for (int32_t i = 0; i < 240; ++i) engine.turn();
}

Pace long_prompt_among(int32_t num_streams, double target_step_s, int32_t num_prompt = 6000) {
  SchedulerLimits limits;
  limits.max_batch_size = 16;
  limits.target_step_s = target_step_s;
  SimulatedEngine engine(limits);
  begin_streams(engine, num_streams);
  Pace pace;
  const double begin_s = engine.now_s;
  engine.add(100, num_prompt, 4);
  int32_t num_steps = 0;
  while (!engine.first_token_s.contains(100)) {
    pace.longest_gap_s = std::max(pace.longest_gap_s, engine.turn());
    ++num_steps;
  }
  pace.wait_s = engine.first_token_s[100] - begin_s;
  SimulatedEngine alone(limits);
  begin_streams(alone, num_streams);
  std::vector<double> gaps;
  for (int32_t i = 0; i < num_steps; ++i) gaps.push_back(alone.turn());
  pace.undisturbed_p99_s = p99(std::move(gaps));
  return pace;
}

}  // namespace

TEST(a_long_prompt_stretches_no_gap_of_running_streams_far) {
  for (const int32_t num_prompt : {500, 2000, 6000}) {
    const double alone_s = long_prompt_among(0, 0.0, num_prompt).wait_s;
    for (const int32_t num_streams : {8, 12}) {
      const Pace pace = long_prompt_among(num_streams, 0.0, num_prompt);
      std::printf(
          "%d tokens, %d streams: p99 %.1f ms, longest gap %.1f ms, first token %.2f s, alone %.2f s\n",
          num_prompt, num_streams, pace.undisturbed_p99_s * 1e3, pace.longest_gap_s * 1e3, pace.wait_s,
          alone_s);
      CHECK(pace.longest_gap_s < 2.5 * pace.undisturbed_p99_s);
      // The streams keep more than half of the time; what prompt tokens cost has yet to be learned.
      CHECK(pace.wait_s < alone_s * (num_prompt < 1000 ? 3.0 : 2.6));
    }
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
  // By now a step of the decodes alone takes 2 + 8 * (0.8 + 2800 * 0.15e-3) = 11.8 ms, and the prompt has a
  // long way to go yet, in which that grows by a quarter.
  double sum_s = 0.0;
  for (const double seconds : mixed_s) sum_s += seconds;
  const double mean_s = sum_s / static_cast<double>(mixed_s.size());
  const double now_s = kMixedStepRatio * 11.8e-3;
  std::printf("mean %.1f ms, %.1f without growth\n", mean_s * 1e3, now_s * 1e3);
  CHECK(mean_s > 1.05 * now_s && mean_s < 1.4 * now_s);
}

TEST_MAIN()
