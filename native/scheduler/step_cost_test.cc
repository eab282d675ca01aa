#include "scheduler/step_cost.h"

#include <cmath>
#include <random>

#include "base/test.h"

using namespace plait;

namespace {

struct Machine {
  double fixed_s = 2e-3, decode_s = 0.8e-3, prefill_s = 0.7e-3, position_s = 0.3e-6;

  double cost_s(const StepLoad& load) const {
    return fixed_s + decode_s * load.num_decodes + prefill_s * load.num_prefills +
           position_s * static_cast<double>(load.decode_positions + load.prefill_positions);
  }
};

class Rng {
 public:
  int32_t below(int32_t end) { return std::uniform_int_distribution<int32_t>(0, end - 1)(engine_); }
  double between(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }

 private:
  std::mt19937 engine_{7};
};

StepLoad decodes(int32_t count, int32_t context) { return {count, int64_t{count} * context, 0, 0}; }

StepLoad with_prompt(StepLoad load, int32_t begin, int32_t count) {
  load.num_prefills = count;
  load.prefill_positions = attended_positions(begin, begin + count);
  return load;
}

bool is_near(double found, double expected, double tolerance) {
  return std::abs(found - expected) <= tolerance * expected;
}

// Steps of a server: 8 streams whose context grows, and now and then prompts.
void run(StepCostModel& model, const Machine& machine, Rng& rng, int32_t num_steps, double noise) {
  for (int32_t i = 0; i < num_steps; ++i) {
    StepLoad load = decodes(1 + rng.below(16), 100 + rng.below(2000));
    if (i % 3 == 0) load = with_prompt(load, rng.below(6000), 8 + rng.below(100));
    model.observe(load, machine.cost_s(load) * rng.between(1.0 - noise, 1.0 + noise));
  }
}

void check_knows(const StepCostModel& model, const Machine& machine, double tolerance) {
  for (const int32_t count : {2, 8, 14}) {
    for (const int32_t context : {200, 1000, 2000}) {
      const StepLoad load = decodes(count, context);
      CHECK(is_near(model.decode_s(count, load.decode_positions), machine.cost_s(load), tolerance));
      for (const int32_t begin : {0, 3000, 5900}) {
        const StepLoad mixed = with_prompt(load, begin, 64);
        CHECK(is_near(model.prefill_s(64, mixed.prefill_positions),
                      machine.cost_s(mixed) - machine.cost_s(load), tolerance));
      }
    }
  }
}

}  // namespace

TEST(positions_are_counted_one_by_one) {
  int64_t sum = 0;
  for (int64_t position = 5; position < 12; ++position) sum += position + 1;
  CHECK_EQ(attended_positions(5, 12), sum);
  CHECK_EQ(attended_positions(9, 9), int64_t{0});
}

TEST(nothing_is_known_before_the_first_step) {
  StepCostModel model;
  CHECK(!model.knows_decodes() && !model.knows_prefills());
  CHECK_EQ(model.decode_s(8, 1000), 0.0);
  CHECK_EQ(model.prefill_s(64, 1000), 0.0);
  model.observe({}, 1.0);
  model.observe(decodes(8, 100), 0.0);
  model.observe(decodes(8, 100), -1.0);
  model.observe(with_prompt(decodes(8, 100), 0, 64), 0.1);  // whose share would be whose?
  CHECK(!model.knows_decodes() && !model.knows_prefills());
}

TEST(one_step_is_known_again) {
  StepCostModel model;
  model.observe(decodes(8, 500), 9e-3);
  CHECK(is_near(model.decode_s(8, 4000), 9e-3, 0.01));
  model.observe(with_prompt(decodes(8, 500), 0, 64), 60e-3);
  CHECK(is_near(model.prefill_s(64, attended_positions(0, 64)), 51e-3, 0.01));
}

TEST(learns_a_machine) {
  StepCostModel exact, noisy;
  Rng rng;
  run(exact, {}, rng, 300, 0.0);
  check_knows(exact, {}, 0.02);
  run(noisy, {}, rng, 300, 0.1);
  check_knows(noisy, {}, 0.12);
}

TEST(late_slices_cost_more_than_early_ones) {
  StepCostModel model;
  Rng rng;
  run(model, {}, rng, 300, 0.05);
  CHECK(model.prefill_s(64, attended_positions(6000, 6064)) >
        2.0 * model.prefill_s(64, attended_positions(0, 64)));
}

TEST(outliers_count_little) {
  StepCostModel model;
  Rng rng;
  const Machine machine;
  run(model, machine, rng, 300, 0.05);
  for (int32_t i = 0; i < 100; ++i) {
    StepLoad load = decodes(1 + rng.below(16), 100 + rng.below(2000));
    if (i % 3 == 0) load = with_prompt(load, rng.below(6000), 8 + rng.below(100));
    model.observe(load, machine.cost_s(load) * (i % 10 == 0 ? 20.0 : rng.between(0.95, 1.05)));
  }
  check_knows(model, machine, 0.2);
}

TEST(follows_a_machine_that_changes) {
  StepCostModel model;
  Rng rng;
  const Machine slow{6e-3, 2.4e-3, 2.1e-3, 0.9e-6};
  run(model, {}, rng, 300, 0.02);
  run(model, slow, rng, 600, 0.02);
  check_knows(model, slow, 0.1);
  run(model, {}, rng, 600, 0.02);
  check_knows(model, {}, 0.1);
}

TEST(what_does_not_occur_is_not_forgotten) {
  StepCostModel model;
  Rng rng;
  const Machine machine;
  run(model, machine, rng, 300, 0.0);
  for (int32_t i = 0; i < 5000; ++i) {
    const StepLoad load = decodes(8, 100 + i);
    model.observe(load, machine.cost_s(load) * rng.between(0.95, 1.05));
  }
  const StepLoad load = with_prompt(decodes(8, 5000), 3000, 64);
  CHECK(is_near(model.prefill_s(64, load.prefill_positions),
                machine.cost_s(load) - machine.cost_s(decodes(8, 5000)), 0.05));
}

// A step is never let in because nothing like it was seen.
TEST(slices_that_are_alike_do_not_make_large_ones_cheap) {
  StepCostModel model;
  Rng rng;
  const Machine machine;
  run(model, machine, rng, 100, 0.05);
  for (int32_t i = 0; i < 3000; ++i) {
    const StepLoad load = decodes(8, 500 + i / 4);
    model.observe(load, machine.cost_s(load) * rng.between(0.8, 1.5));
    const StepLoad mixed = with_prompt(load, 3000, 5);
    model.observe(mixed, machine.cost_s(mixed) * rng.between(0.8, 1.5));
    const double slice_s = model.prefill_s(5, attended_positions(3000, 3005));
    CHECK(model.prefill_s(500, attended_positions(3000, 3500)) > 90.0 * slice_s);
    CHECK(model.prefill_s(5, attended_positions(5000, 5005)) >= 0.999 * slice_s);
  }
}

TEST(a_large_step_does_not_outweigh_small_ones) {
  StepCostModel model;
  Rng rng;
  // Small slices use the machine badly.
  const Machine small, large{2e-3, 0.8e-3, 0.2e-3, 0.1e-6};
  run(model, small, rng, 100, 0.0);
  model.observe(with_prompt({}, 5000, 512), large.cost_s(with_prompt({}, 5000, 512)));
  for (int32_t i = 0; i < 60; ++i) {
    model.observe(decodes(8, 500), small.cost_s(decodes(8, 500)));
    const StepLoad mixed = with_prompt(decodes(8, 500), 100 * i, 16);
    model.observe(mixed, small.cost_s(mixed));
  }
  const StepLoad mixed = with_prompt(decodes(8, 500), 3000, 16);
  CHECK(is_near(model.prefill_s(16, mixed.prefill_positions),
                small.cost_s(mixed) - small.cost_s(decodes(8, 500)), 0.1));
}

TEST(costs_are_never_negative) {
  StepCostModel model;
  Rng rng;
  for (int32_t i = 0; i < 500; ++i) {
    // More work, less time: no machine is like this, but a noisy one may look like it for a while.
    const StepLoad load = decodes(1 + i % 16, 1000);
    model.observe(load, 20e-3 - 1e-3 * load.num_decodes);
    model.observe(with_prompt(load, 100, 1 + i % 64), 30e-3 - 1e-4 * (i % 64));
    CHECK(model.decode_s(rng.below(64), rng.below(100000)) >= 0.0);
    CHECK(model.prefill_s(rng.below(512), rng.below(1000000)) >= 0.0);
  }
}

TEST_MAIN()
