// A long prompt among running streams, on a simulated machine: how much it stretches the gaps of the streams,
// and how long it waits for its own first token.
#include <algorithm>

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

TEST_MAIN()
