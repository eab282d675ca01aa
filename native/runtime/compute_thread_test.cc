#include "runtime/compute_thread.h"

#include <chrono>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/test.h"
#include "plan/tiny_model.h"

using namespace plait;

namespace {

struct Engine {
  explicit Engine(int32_t num_threads, Parallelism parallelism = Parallelism::kTensor)
      : compute(model.plan, model.weights, std::make_shared<KvStorage>(model.plan->kv, 64),
                {Isa::kScalar, num_threads, {}, {64, 8}, parallelism}, bell) {}

  StepResult wait() {
    StepResult result;
    for (;;) {
      const uint32_t seen = bell->epoch();
      if (compute.try_pop(result)) return result;
      bell->wait(seen, -1);
    }
  }

  TinyModel model;
  std::shared_ptr<Doorbell> bell = std::make_shared<Doorbell>();
  ComputeThread compute;
};

StepInput decode(int32_t context, int32_t slot) {
  StepInput step = TinyModel::step({-1}, context, slot, 8 * slot);
  step.step_id = context;
  step.sample_rows = {0};
  step.sample_slots = {slot};
  return step;
}

// Greedy tokens of one prompt; `depth` steps are in flight at a time.
std::vector<int32_t> generate(Engine& engine, int32_t slot, int32_t depth) {
  StepInput first = TinyModel::step(TinyModel::prompt(10, 1), 10, slot, 8 * slot);
  first.step_id = 10;
  SlotStart start;
  start.slot = slot;
  start.prompt_ids = TinyModel::prompt(10, 1);
  start.params.temperature = 0;
  first.slot_starts = {start};
  first.sample_rows = {9};
  first.sample_slots = {slot};
  CHECK(engine.compute.try_submit(std::move(first)));
  std::vector<int32_t> tokens;
  int32_t submitted = 10;
  for (int32_t expected = 10; expected < 100; ++expected) {
    while (submitted < 99 && submitted - expected + 1 < depth) {
      CHECK(engine.compute.try_submit(decode(++submitted, slot)));
    }
    const StepResult result = engine.wait();
    CHECK_EQ(result.step_id, int64_t{expected});
    CHECK_EQ(result.error, std::string());
    tokens.push_back(result.samples[0].token);
  }
  return tokens;
}

}  // namespace

TEST(steps_in_flight_resolve_tokens_in_order) {
  Engine engine(1);
  const std::vector<int32_t> expected = generate(engine, 0, 1);
  CHECK(generate(engine, 1, 2) == expected);
  CHECK(generate(engine, 2, 4) == expected);
  Engine pair(2);
  CHECK(generate(pair, 0, 3) == expected);
  CHECK_EQ(pair.compute.num_steps(), int64_t{90});
  CHECK(pair.compute.busy_ns() > 0);
}

TEST(a_full_ring_refuses_and_keeps_the_step) {
  Engine engine(1);
  size_t accepted = 0;
  for (int32_t i = 0; i < 20; ++i) {
    StepInput step = TinyModel::step(TinyModel::prompt(64, 2), 64);
    if (!engine.compute.try_submit(std::move(step))) {
      CHECK_EQ(step.token_ids.size(), size_t{64});
      break;
    }
    ++accepted;
  }
  CHECK_EQ(accepted, ComputeThread::kDepth);
  for (size_t i = 0; i < accepted; ++i) CHECK_EQ(engine.wait().error, std::string());
}

TEST(sleeps_and_wakes) {
  Engine engine(2);
  const std::vector<int32_t> expected = generate(engine, 0, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(generate(engine, 0, 2) == expected);
}

TEST(a_step_that_nobody_wants_is_left_and_the_next_one_is_computed) {
  for (const Parallelism parallelism : {Parallelism::kTensor, Parallelism::kPipeline}) {
    Engine reference(2, parallelism);
    const std::vector<int32_t> expected = generate(reference, 0, 1);
    Engine engine(2, parallelism);
    const auto is_unwanted = std::make_shared<std::atomic<bool>>(true);
    StepInput step = TinyModel::step(TinyModel::prompt(64, 2), 64);
    step.is_unwanted = is_unwanted;
    CHECK(engine.compute.try_submit(std::move(step)));
    const StepResult result = engine.wait();
    CHECK(result.was_skipped);
    CHECK_EQ(result.error, std::string());
    CHECK_EQ(result.forward_ns, result.end_ns - result.begin_ns);
    CHECK(generate(engine, 0, 1) == expected);
    // One that is wanted.
    *is_unwanted = false;
    step = TinyModel::step(TinyModel::prompt(64, 2), 64);
    step.is_unwanted = is_unwanted;
    CHECK(engine.compute.try_submit(std::move(step)));
    CHECK(!engine.wait().was_skipped);
  }
}

TEST(a_step_may_lose_its_last_reader_at_any_moment) {
  std::mt19937 rng(1);
  for (const int32_t num_threads : {1, 2, 3}) {
    const Parallelism parallelism = num_threads > 1 ? Parallelism::kPipeline : Parallelism::kTensor;
    Engine reference(num_threads, parallelism);
    const std::vector<int32_t> expected = generate(reference, 0, 1);
    Engine engine(num_threads, parallelism);
    int32_t num_skipped = 0;
    int64_t step_ns = 0;
    for (int32_t i = 0; i < 100; ++i) {
      const auto is_unwanted = std::make_shared<std::atomic<bool>>(false);
      StepInput step = TinyModel::step(TinyModel::prompt(64, 2), 64);
      step.is_unwanted = is_unwanted;
      CHECK(engine.compute.try_submit(std::move(step)));
      const int64_t until_ns =
          monotonic_ns() + (i == 0 ? kNeverNs / 2 : std::uniform_int_distribution<int64_t>(0, step_ns)(rng));
      StepResult result;
      while (!engine.compute.try_pop(result)) {
        if (monotonic_ns() >= until_ns) *is_unwanted = true;
      }
      if (i == 0) step_ns = result.end_ns - result.begin_ns;
      CHECK(!result.was_skipped || *is_unwanted);
      if (result.was_skipped) ++num_skipped;
    }
    CHECK(num_skipped > 0);
    CHECK(generate(engine, 0, 1) == expected);
  }
}

TEST(stop_finishes_what_was_submitted) {
  Engine engine(2);
  for (int32_t i = 0; i < 3; ++i)
    CHECK(engine.compute.try_submit(TinyModel::step(TinyModel::prompt(64, 3), 64)));
  engine.compute.stop();
  engine.compute.stop();
  for (int32_t i = 0; i < 3; ++i) CHECK_EQ(engine.wait().num_tokens, 64);
  CHECK_THROWS(engine.compute.try_submit(TinyModel::step({1}, 1)));
}

TEST_MAIN()
