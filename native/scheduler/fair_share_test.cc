// Tenants on a simulated machine: what a crowd of one does to the answers of another.
#include "scheduler/fair_share.h"

#include <algorithm>
#include <set>

#include "base/test.h"
#include "scheduler/simulated_engine.h"

using namespace plait;

namespace {

SchedulerLimits limits_of(double light_weight = 1.0) {
  SchedulerLimits limits;
  limits.max_batch_size = 64;
  limits.tenant_weights = {{"light", light_weight}};
  return limits;
}

// One request after the other, 100 tokens in and 64 out; the longest latency and the mean one.
std::pair<double, double> latencies_of(SimulatedEngine& engine, int32_t count, int64_t first_id = 1000) {
  double longest_s = 0.0;
  double sum_s = 0.0;
  for (int64_t id = first_id; id < first_id + count; ++id) {
    engine.add(id, 100, 64, "light");
    while (!engine.end_s.contains(id)) engine.turn();
    const double latency_s = engine.end_s[id] - engine.begin_s[id];
    longest_s = std::max(longest_s, latency_s);
    sum_s += latency_s;
  }
  return {longest_s, sum_s / count};
}

int32_t tokens_of_crowd(const SimulatedEngine& engine) {
  int32_t sum = 0;
  for (const auto& [id, count] : engine.num_tokens) sum += id >= 0 && id < 999 ? count : 0;
  return sum;
}

}  // namespace

TEST(one_request_at_a_time_is_answered_beside_a_crowd_of_another_tenant) {
  SimulatedEngine idle(limits_of());
  const double alone_s = latencies_of(idle, 20).second;
  SimulatedEngine busy(limits_of());
  for (int64_t id = 0; id < 200; ++id) busy.add(id, 100, 64, "crowd");
  for (int32_t i = 0; i < 200; ++i) busy.turn();  // it has all the slots by now
  CHECK(busy.scheduler.num_running() >= 60);
  CHECK(latencies_of(busy, 1, 999).first < 2.5 * alone_s);  // it waits for two long steps that are in flight
  const int32_t num_before = tokens_of_crowd(busy);
  const auto [longest_s, mean_s] = latencies_of(busy, 20);
  std::printf("alone %.0f ms; beside a crowd %.0f ms, at most %.0f ms; the crowd got %d tokens meanwhile\n",
              alone_s * 1e3, mean_s * 1e3, longest_s * 1e3, tokens_of_crowd(busy) - num_before);
  CHECK(mean_s < 2.0 * alone_s);
  CHECK(longest_s < 2.0 * alone_s);
  CHECK(tokens_of_crowd(busy) - num_before > 20 * 64 / 2);  // it is not starved either
  while (busy.scheduler.has_work()) busy.turn();
  for (int64_t id = 0; id < 200; ++id) CHECK_EQ(busy.num_tokens[id], 64);
  busy.scheduler.check_idle();
}

TEST(a_crowd_takes_turns) {
  SimulatedEngine engine(limits_of());
  for (int64_t id = 0; id < 40; ++id) engine.add(id, 20, 400, "crowd");
  for (int32_t i = 0; i < 120; ++i) engine.turn();
  engine.add(1000, 20, 2000, "light");
  for (int32_t i = 0; i < 200; ++i) engine.turn();
  std::map<int64_t, int32_t> before = engine.num_tokens;
  for (int32_t i = 0; i < 400; ++i) engine.turn();
  int32_t least = INT32_MAX;
  int32_t most = 0;
  for (int64_t id = 0; id < 40; ++id) {
    least = std::min(least, engine.num_tokens[id] - before[id]);
    most = std::max(most, engine.num_tokens[id] - before[id]);
  }
  CHECK(least > 0);
  CHECK(most - least <= 1);
  CHECK_EQ(engine.num_tokens[1000] - before[1000], 400);
}

TEST(a_weight_buys_time) {
  const auto mean_s = [](double light_weight) {
    SimulatedEngine engine(limits_of(light_weight));
    for (int64_t id = 0; id < 200; ++id) engine.add(id, 100, 64, "crowd");
    for (int32_t i = 0; i < 200; ++i) engine.turn();
    return latencies_of(engine, 10).second;
  };
  const double light_s = mean_s(0.2);
  const double equal_s = mean_s(1.0);
  const double heavy_s = mean_s(5.0);
  CHECK(light_s > 1.5 * equal_s);
  CHECK(equal_s > 1.02 * heavy_s);
}

TEST(tenants_that_want_the_same_are_not_held_back) {
  SimulatedEngine shared(limits_of());
  SimulatedEngine single(limits_of());
  for (SimulatedEngine* engine : {&shared, &single}) {
    for (int64_t id = 0; id < 32; ++id) {
      engine->add(id, 100, 64, engine == &shared ? std::to_string(id % 4) : "all");
    }
    while (engine->scheduler.has_work()) engine->turn();
  }
  CHECK(shared.now_s < 1.1 * single.now_s);
}

TEST(one_tenant_alone_is_never_passed_over) {
  SimulatedEngine engine(limits_of());
  for (int64_t id = 0; id < 20; ++id) engine.add(id, 20, 200, "crowd");
  for (int32_t i = 0; i < 60; ++i) engine.turn();
  engine.add(1000, 20, 40, "light");
  while (!engine.end_s.contains(1000)) engine.turn();
  for (int32_t i = 0; i < 3; ++i) engine.turn();
  std::map<int64_t, int32_t> before = engine.num_tokens;
  for (int32_t i = 0; i < 20; ++i) engine.turn();
  for (int64_t id = 0; id < 20; ++id)
    CHECK(engine.end_s.contains(id) || engine.num_tokens[id] == before[id] + 20);
}

TEST_MAIN()
