#include "runtime/inline_executor.h"

#include <cstring>
#include <thread>

#include "base/test.h"
#include "plan/tiny_model.h"
#include "runtime/compute_thread.h"

using namespace plait;

namespace {

ComputeOptions options(int32_t num_threads, Parallelism parallelism) {
  return {supported_isas().back(), num_threads, {}, {64, 8}, parallelism};
}

struct Inline {
  explicit Inline(int32_t num_threads = 1, Parallelism parallelism = Parallelism::kTensor)
      : executor(model.plan, model.weights, std::make_shared<KvStorage>(model.plan->kv, 64),
                 options(num_threads, parallelism)) {}
  StepResult wait() {
    StepResult result;
    CHECK(executor.run_next());
    CHECK(executor.try_pop(result));
    return result;
  }
  TinyModel model;
  InlineExecutor executor;
};

struct Threaded {
  explicit Threaded(int32_t num_threads = 1, Parallelism parallelism = Parallelism::kTensor)
      : executor(model.plan, model.weights, std::make_shared<KvStorage>(model.plan->kv, 64),
                 options(num_threads, parallelism), bell) {}
  StepResult wait() {
    StepResult result;
    for (;;) {
      const uint32_t seen = bell->epoch();
      if (executor.try_pop(result)) return result;
      bell->wait(seen, -1);
    }
  }
  TinyModel model;
  std::shared_ptr<Doorbell> bell = std::make_shared<Doorbell>();
  ComputeThread executor;
};

SlotStart start_of(int32_t slot, std::vector<int32_t> prompt) {
  SlotStart start;
  start.slot = slot;
  start.prompt_ids = std::move(prompt);
  start.params.temperature = 0.8F;
  start.params.seed = static_cast<uint64_t>(slot);
  start.params.num_logprobs = 2;
  return start;
}

// A prompt and many tokens after it, always two steps in flight; every score and sample in order.
template <typename Engine>
std::vector<Sampled> generate(Engine& engine) {
  const std::vector<int32_t> prompt = TinyModel::prompt(40, 1);
  StepInput step = TinyModel::step(prompt, 40);
  step.slot_starts = {start_of(0, prompt)};
  step.sample_rows = {39};
  step.sample_slots = {0};
  for (int32_t row = 0; row < 40; ++row) step.scores.push_back({row, row, 2});
  std::vector<Sampled> all;
  for (int32_t context = 40; context < 140; ++context) {
    step.step_id = context;
    CHECK(engine.executor.try_submit(std::move(step)));
    step = TinyModel::step({-1}, context + 1);
    step.sample_rows = {0};
    step.sample_slots = {0};
    if (context == 40) continue;
    const StepResult result = engine.wait();
    CHECK_EQ(result.step_id, int64_t{context - 1});
    CHECK_EQ(result.error, std::string());
    all.insert(all.end(), result.samples.begin(), result.samples.end());
    all.insert(all.end(), result.scores.begin(), result.scores.end());
  }
  CHECK_EQ(engine.wait().step_id, int64_t{139});
  return all;
}

bool same(const std::vector<Sampled>& a, const std::vector<Sampled>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].token != b[i].token || a[i].rank != b[i].rank || a[i].top != b[i].top ||
        std::memcmp(&a[i].logprob, &b[i].logprob, sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

TEST(gives_the_bits_of_the_compute_thread) {
  Inline reference;
  const std::vector<Sampled> expected = generate(reference);
  CHECK_EQ(expected.size(), size_t{99 + 40});
  CHECK_EQ(reference.executor.num_steps(), int64_t{100});
  CHECK(reference.executor.busy_ns() > 0);
  CHECK(reference.executor.last_step_end_ns() > 0);
  for (const Parallelism parallelism : {Parallelism::kTensor, Parallelism::kPipeline}) {
    for (int32_t num_threads : {2, 3}) {
      Inline inlined(num_threads, parallelism);
      CHECK(same(generate(inlined), expected));
      Threaded threaded(num_threads, parallelism);
      CHECK(same(generate(threaded), expected));
    }
  }
}

TEST(nothing_runs_until_it_is_asked_to) {
  Inline engine;
  StepResult result;
  CHECK(!engine.executor.run_next());
  size_t accepted = 0;
  StepInput step;
  for (; accepted < 20; ++accepted) {
    step = TinyModel::step(TinyModel::prompt(64, 2), 64);
    step.step_id = static_cast<int64_t>(accepted);
    if (!engine.executor.try_submit(std::move(step))) break;
  }
  CHECK_EQ(accepted, InlineExecutor::kDepth);
  CHECK_EQ(step.token_ids.size(), size_t{64});  // refused, unchanged
  CHECK(!engine.executor.try_pop(result));
  CHECK_EQ(engine.executor.num_steps(), int64_t{0});
  for (size_t i = 0; i < accepted; ++i) {
    // A slot comes free when a result is taken, not when a step has run.
    CHECK(engine.executor.run_next());
    if (i == 0) CHECK(!engine.executor.try_submit(std::move(step)));
    CHECK(engine.executor.try_pop(result));
    CHECK_EQ(result.step_id, static_cast<int64_t>(i));
    CHECK(!engine.executor.try_pop(result));
  }
  CHECK(engine.executor.try_submit(std::move(step)));
}

TEST(steps_may_run_on_another_thread) {
  Inline reference;
  const std::vector<Sampled> expected = generate(reference);
  struct Elsewhere : Inline {
    StepResult wait() {
      StepResult result;
      std::thread([&] { CHECK(executor.run_next()); }).join();
      CHECK(executor.try_pop(result));
      return result;
    }
  } elsewhere;
  CHECK(same(generate(elsewhere), expected));
}

TEST(stop_runs_what_was_submitted) {
  Inline engine(2);
  for (int32_t i = 0; i < 3; ++i) {
    CHECK(engine.executor.try_submit(TinyModel::step(TinyModel::prompt(64, 3), 64)));
  }
  CHECK_THROWS(engine.executor.try_submit(TinyModel::step({TinyModel::kVocab}, 1)));
  engine.executor.stop();
  engine.executor.stop();
  StepResult result;
  for (int32_t i = 0; i < 3; ++i) {
    CHECK(engine.executor.try_pop(result));
    CHECK_EQ(result.num_tokens, 64);
  }
  CHECK(!engine.executor.try_pop(result));
  CHECK_THROWS(engine.executor.try_submit(TinyModel::step({1}, 1)));
}

TEST(a_pipeline_of_one_thread_is_refused) {
  CHECK_THROWS(Inline(1, Parallelism::kPipeline));
  CHECK_THROWS(Threaded(1, Parallelism::kPipeline));
}

TEST_MAIN()
