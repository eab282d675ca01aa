#include "runtime/engine_loop.h"

#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/test.h"
#include "plan/tiny_model.h"

using namespace plait;

namespace {

constexpr int32_t kBlockTokens = 16;
constexpr int32_t kSlots = 8;
constexpr int32_t kMaxTokens = 64;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  FinishReason reason = FinishReason::kNone;
  std::string error;
  int32_t num_ends = 0;
};

struct Engine {
  explicit Engine(int32_t num_blocks = 64, EngineLoopOptions options = {}, int32_t num_threads = 1,
                  int64_t swap_bytes = 0)
      : kv(std::make_shared<KvManager>(num_blocks, kBlockTokens, "tiny")),
        storage(std::make_shared<KvStorage>(model.plan->kv, num_blocks)),
        swap(swap_bytes == 0 ? nullptr
                             : std::make_shared<KvSwap>(storage, kv->versions(),
                                                        KvSwapOptions{swap_bytes, "", 0}, main_bell)),
        scheduler(
            std::make_shared<Scheduler>(limits(num_blocks, swap ? model.plan->kv.block_bytes() : 0), kv)),
        compute(std::make_shared<ComputeThread>(
            model.plan, model.weights, storage,
            ComputeOptions{Isa::kScalar, num_threads, {}, {kMaxTokens, kSlots}}, main_bell)),
        loop(scheduler, compute, main_bell, outputs_bell, options, swap) {}

  static SchedulerLimits limits(int32_t num_blocks, int64_t kv_block_bytes) {
    SchedulerLimits limits;
    limits.num_blocks = num_blocks;
    limits.block_tokens = kBlockTokens;
    limits.kv_block_bytes = kv_block_bytes;
    limits.max_batch_size = kSlots;
    limits.max_batch_tokens = kMaxTokens;
    limits.prefill_chunk_tokens = 24;
    limits.vocab_size = TinyModel::kVocab;
    return limits;
  }

  // Takes what is there; waits for something first. False when the loop ended.
  bool take() {
    EngineOutputs batch;
    for (;;) {
      const uint32_t seen = outputs_bell->epoch();
      if (loop.try_pop(batch)) break;
      outputs_bell->wait(seen, 1'000'000'000);
    }
    do {
      if (batch.has_ended) {
        has_ended = true;
        end_error = batch.error;
        return false;
      }
      for (const Output& output : batch.outputs) keep(output);
    } while (loop.try_pop(batch));
    return true;
  }

  void keep(const Output& output) {
    Answer& answer = answers[{output.request_id, output.index}];
    CHECK_EQ(answer.num_ends, 0);  // nothing comes after the last one
    answer.tokens.insert(answer.tokens.end(), output.token_ids.begin(), output.token_ids.end());
    for (const Sampled& sampled : output.logprobs) answer.logprobs.push_back(sampled.logprob);
    if (output.finish_reason == FinishReason::kNone) return;
    answer.reason = output.finish_reason;
    answer.error = output.error;
    ++answer.num_ends;
    ++num_ended;
  }

  void wait_for(int32_t count) {
    while (num_ended < count && take()) {
    }
    CHECK(!has_ended);
  }

  void stop() {
    loop.push_stop();
    while (take()) {
    }
    CHECK(loop.join(-1));
  }

  TinyModel model;
  std::shared_ptr<Doorbell> main_bell = std::make_shared<Doorbell>();
  std::shared_ptr<Doorbell> outputs_bell = std::make_shared<Doorbell>();
  std::shared_ptr<KvManager> kv;
  std::shared_ptr<KvStorage> storage;
  std::shared_ptr<KvSwap> swap;
  std::shared_ptr<Scheduler> scheduler;
  std::shared_ptr<ComputeThread> compute;
  EngineLoop loop;
  std::map<std::pair<int64_t, int32_t>, Answer> answers;
  int32_t num_ended = 0;
  bool has_ended = false;
  std::string end_error;
};

Request request_of(int64_t id, int32_t num_prompt, int32_t max_tokens, int32_t n = 1) {
  Request request;
  request.request_id = id;
  request.prompt_ids = TinyModel::prompt(num_prompt, static_cast<uint64_t>(id));
  request.max_tokens = max_tokens;
  request.n = n;
  request.params.temperature = id % 2 == 0 ? 0.0F : 1.0F;
  request.params.seed = static_cast<uint64_t>(id);
  request.params.num_logprobs = 0;
  request.tenant = id % 3 == 0 ? "a" : "b";
  request.arrived_ns = 1;
  return request;
}

void push(EngineLoop& loop, Request&& request) {
  while (!loop.push(std::move(request))) std::this_thread::yield();
}

// Every request by itself, in an engine that does nothing else.
std::map<std::pair<int64_t, int32_t>, Answer> answers_alone(int64_t count) {
  Engine engine;
  engine.loop.start();
  for (int64_t id = 0; id < count; ++id) {
    push(engine.loop,
         request_of(id, 3 + static_cast<int32_t>(id * 7 % 50), 12, 1 + static_cast<int32_t>(id % 2)));
    engine.wait_for(static_cast<int32_t>(id + 1 + (id + 1) / 2));
  }
  engine.stop();
  return engine.answers;
}

}  // namespace

TEST(many_at_once_give_the_answers_of_each_alone) {
  constexpr int64_t kCount = 24;
  const auto expected = answers_alone(kCount);
  for (const int32_t num_blocks : {64, 9}) {  // the small pool preempts
    Engine engine(num_blocks, {16, 2, 2}, 2);
    engine.loop.start();
    std::vector<std::thread> clients;
    for (int64_t client = 0; client < 4; ++client) {
      clients.emplace_back([&, client] {
        for (int64_t id = client; id < kCount; id += 4) {
          push(engine.loop,
               request_of(id, 3 + static_cast<int32_t>(id * 7 % 50), 12, 1 + static_cast<int32_t>(id % 2)));
        }
      });
    }
    for (std::thread& client : clients) client.join();
    engine.wait_for(kCount * 3 / 2);
    CHECK_EQ(engine.answers.size(), expected.size());
    for (const auto& [key, answer] : expected) {
      CHECK(answer.tokens == engine.answers[key].tokens);
      CHECK(answer.logprobs == engine.answers[key].logprobs);
      CHECK(engine.answers[key].reason == FinishReason::kLength);
    }
    CHECK(num_blocks > 9 || engine.loop.scheduler().stats().preemptions_total.get() > 0);
    engine.stop();
    CHECK_EQ(engine.end_error, std::string());
    CHECK(engine.loop.num_steps() > 0);
    CHECK_EQ(engine.loop.num_failed_steps(), int64_t{0});
    CHECK_EQ(engine.loop.num_steps_in_flight(), int64_t{0});
    CHECK(engine.loop.step_ns() >= engine.loop.forward_ns() && engine.loop.forward_ns() > 0);
    engine.scheduler->check_idle();
    engine.kv->check_consistency();
  }
}

TEST(preempted_sequences_are_saved_and_brought_back) {
  constexpr int64_t kCount = 4;
  const auto run = [](Engine& engine) {
    engine.loop.start();
    for (int64_t id = 0; id < kCount; ++id) push(engine.loop, request_of(id, 600, 100));
    engine.wait_for(kCount);
    engine.stop();
    engine.scheduler->check_idle();
    return engine.loop.scheduler().stats().preemptions_total.get();
  };
  Engine large(200);
  CHECK_EQ(run(large), int64_t{0});
  for (const int64_t swap_bytes : {int64_t{1} << 30, int64_t{1}}) {  // the small one has no room
    Engine small(82, {16, 16, 2}, 1, swap_bytes);
    CHECK(run(small) > 0);
    for (const auto& [key, answer] : large.answers) {
      CHECK(answer.tokens == small.answers[key].tokens);
      CHECK(answer.logprobs == small.answers[key].logprobs);
    }
    CHECK_EQ(small.swap->counters().ram_bytes_used, int64_t{0});
    const SchedulerStats& stats = small.loop.scheduler().stats();
    CHECK(stats.failed_transfers_total.get() + stats.fetched_sequences_total.get() > 0);
    CHECK_EQ(stats.fetched_sequences_total.get() > 0, swap_bytes > 1);
  }
}

TEST(swap_and_the_size_of_blocks_go_together) {
  Engine plain;
  const auto swap =
      std::make_shared<KvSwap>(plain.storage, plain.kv->versions(), KvSwapOptions{1, "", 0}, plain.main_bell);
  CHECK_THROWS(EngineLoop(plain.scheduler, plain.compute, plain.main_bell, plain.outputs_bell, {}, swap));
  Engine saving(64, {}, 1, 1 << 20);
  CHECK_THROWS(EngineLoop(saving.scheduler, saving.compute, saving.main_bell, saving.outputs_bell, {}));
}

TEST(a_slow_reader_loses_nothing) {
  Engine engine(64, {16, 1, 2});
  engine.loop.start();
  push(engine.loop, request_of(1, 5, 60));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the ring of one is full by now
  engine.wait_for(1);
  CHECK_EQ((engine.answers[{1, 0}].tokens.size()), size_t{60});
  engine.stop();
}

TEST(aborts_end_what_waits_and_what_runs) {
  Engine engine;
  engine.loop.start();
  for (int64_t id = 0; id < 12; ++id) push(engine.loop, request_of(id, 5, 500));
  while (engine.answers.size() < kSlots) CHECK(engine.take());
  for (int64_t id = 0; id < 12; ++id) CHECK(engine.loop.push_abort(id));
  CHECK(engine.loop.push_abort(99));
  engine.wait_for(12);
  for (const auto& [key, answer] : engine.answers) CHECK(answer.reason == FinishReason::kAbort);
  engine.stop();
  engine.scheduler->check_idle();
}

TEST(a_request_that_cannot_run_ends_alone) {
  Engine engine;
  engine.loop.start();
  Request bad = request_of(1, 5, 4, 2);
  bad.prompt_ids[2] = TinyModel::kVocab;
  push(engine.loop, std::move(bad));
  push(engine.loop, request_of(2, 5, 4));
  push(engine.loop, request_of(3, 60 * kBlockTokens, 100 * kBlockTokens));  // never fits
  engine.wait_for(4);
  CHECK((engine.answers[{1, 0}].reason == FinishReason::kError));
  CHECK((engine.answers[{1, 1}].error.find("not in the vocabulary") != std::string::npos));
  CHECK_EQ((engine.answers[{2, 0}].tokens.size()), size_t{4});
  CHECK((engine.answers[{3, 0}].error.find("the whole pool has 64") != std::string::npos));
  engine.stop();
  engine.scheduler->check_idle();
}

TEST(a_request_that_is_not_timed_leaves_no_trace_in_the_times) {
  Engine engine;
  engine.loop.start();
  Request warm_up = request_of(1, 5, 2);
  warm_up.is_timed = false;
  push(engine.loop, std::move(warm_up));
  engine.wait_for(1);
  CHECK_EQ(engine.loop.accepts().count(), 0);
  CHECK_EQ(engine.loop.accepts().max_ns(), 0);
  push(engine.loop, request_of(2, 5, 2));
  engine.wait_for(2);
  CHECK_EQ(engine.loop.accepts().count(), 1);
  engine.stop();
}

TEST(a_full_ring_leaves_the_request_as_it_was) {
  Engine engine(64, {2, 2, 2});  // not started: nobody takes messages
  CHECK(engine.loop.push(request_of(1, 5, 4)));
  CHECK(engine.loop.push_abort(9));
  Request third = request_of(3, 5, 4);
  CHECK(!engine.loop.push(std::move(third)));
  CHECK_EQ(third.prompt_ids.size(), size_t{5});
  CHECK_EQ(engine.loop.num_messages(), size_t{2});
  CHECK(!engine.loop.push_abort(1));
  engine.loop.start();
  engine.wait_for(1);
  CHECK(engine.loop.push(std::move(third)));
  engine.wait_for(2);
  engine.stop();
}

TEST(stop_aborts_what_runs_and_what_comes) {
  Engine engine;
  engine.loop.start();
  push(engine.loop, request_of(1, 5, 500));
  while (engine.answers.empty()) CHECK(engine.take());
  CHECK(!engine.loop.join(1'000'000));
  engine.loop.push_stop();
  engine.loop.push_stop();
  engine.stop();
  CHECK((engine.answers[{1, 0}].reason == FinishReason::kAbort));
  CHECK_EQ(engine.end_error, std::string());
  CHECK(engine.loop.join(-1));
  CHECK_THROWS(engine.loop.start());
}

TEST(an_engine_that_is_dropped_while_it_works_ends) {
  Engine engine(64, {16, 1, 2});
  engine.loop.start();
  for (int64_t id = 0; id < 8; ++id) push(engine.loop, request_of(id, 5, 500));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(a_refused_step_ends_its_requests_and_the_loop_lives) {
  Engine engine;
  engine.compute->stop();  // from now on it refuses every step
  engine.loop.start();
  push(engine.loop, request_of(1, 5, 4));
  push(engine.loop, request_of(2, 5, 4));
  engine.wait_for(2);
  CHECK((engine.answers[{1, 0}].error.find("has been stopped") != std::string::npos));
  CHECK(engine.loop.num_failed_steps() > 0);
  engine.stop();
  engine.scheduler->check_idle();
}

TEST(an_error_of_nobodys_request_ends_the_loop_loudly) {
  Engine engine;
  StepInput stray = TinyModel::step({1, 2}, 2);
  stray.step_id = 77;
  CHECK(engine.compute->try_submit(std::move(stray)));
  engine.loop.start();
  while (engine.take()) {
  }
  CHECK(engine.end_error.find("the result of step 77 came, none was due") != std::string::npos);
  CHECK(engine.loop.join(-1));
}

TEST(a_deadline_wakes_the_loop) {
  Engine engine;
  engine.loop.start();
  Request request = request_of(1, 5, 1000);
  request.deadline_ns = 2;  // long ago
  push(engine.loop, std::move(request));
  engine.wait_for(1);
  CHECK((engine.answers[{1, 0}].reason == FinishReason::kAbort));
  engine.stop();
}

TEST(options_out_of_range_are_refused) {
  Engine engine;
  const auto make = [&](EngineLoopOptions options) {
    EngineLoop loop(engine.scheduler, engine.compute, engine.main_bell, engine.outputs_bell, options);
  };
  CHECK_THROWS(make({16, 16, 0}));
  CHECK_THROWS(make({16, 16, 5}));
  CHECK_THROWS(make({0, 16, 2}));
  CHECK_THROWS(make({16, 0, 2}));
}

TEST_MAIN()
