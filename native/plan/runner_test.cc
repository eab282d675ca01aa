#include "plan/runner.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/test.h"
#include "plan/tiny_model.h"

using namespace plait;

namespace {

constexpr int32_t kVocab = TinyModel::kVocab;

struct Bench {
  explicit Bench(int32_t num_threads, Isa isa = Isa::kScalar, KvDtype dtype = KvDtype::kF16,
                 int32_t num_blocks = 128)
      : model(dtype),
        team(num_threads, {}),
        kv(std::make_shared<KvStorage>(model.plan->kv, num_blocks)),
        runner(model.plan, model.weights, kv, kernel_table(isa), team, {200, 8}) {
    // Memory of blocks holds what an earlier sequence left: make it as bad as it can be.
    std::memset(kv->pool(), 0xFF, kv->layout().block_bytes() * static_cast<size_t>(num_blocks));
  }
  StepResult run(const StepInput& step, float* capture = nullptr) {
    runner.check(step);
    StepResult result;
    runner.run(step, result, capture);
    return result;
  }

  TinyModel model;
  Team team;
  std::shared_ptr<KvStorage> kv;
  Runner runner;
};

// Logits after every token of a prompt, computed in chunks.
std::vector<float> logits_of(Bench& bench, const std::vector<int32_t>& prompt, int32_t chunk) {
  std::vector<float> out(prompt.size() * kVocab);
  for (size_t begin = 0; begin < prompt.size(); begin += static_cast<size_t>(chunk)) {
    const size_t end = std::min(prompt.size(), begin + static_cast<size_t>(chunk));
    StepInput step = TinyModel::step({prompt.begin() + static_cast<std::ptrdiff_t>(begin),
                                      prompt.begin() + static_cast<std::ptrdiff_t>(end)},
                                     static_cast<int32_t>(end));
    for (size_t row = 0; row < end - begin; ++row) step.scores.push_back({static_cast<int32_t>(row), 0, 0});
    bench.run(step, out.data() + begin * kVocab);
  }
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST(logits_do_not_depend_on_chunks_threads_or_isa) {
  const std::vector<int32_t> prompt = TinyModel::prompt(150, 1);
  Bench reference(1);
  const std::vector<float> expected = logits_of(reference, prompt, 150);
  for (float logit : expected) CHECK(logit == logit);
  // Single queries of 2 kv heads: with more threads than that the groups of query heads are cut.
  for (int32_t num_threads : {1, 2, 3, 5}) {
    for (int32_t chunk : {1, 7, 16, 33, 64}) {
      Bench bench(num_threads);
      CHECK(same_bits(logits_of(bench, prompt, chunk), expected));
    }
  }
  for (const Isa isa : supported_isas()) {
    Bench bench(2, isa);
    CHECK(same_bits(logits_of(bench, prompt, 40), expected));
  }
}

TEST(long_context_is_split_over_partitions) {
  // Beyond 512 positions few queries are computed by partitions: prefill in large chunks must agree. One
  // layer has a window that leaves the first partitions out.
  const std::vector<int32_t> prompt = TinyModel::prompt(1100, 2);
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kQ8}) {
    Bench chunked(1, Isa::kScalar, dtype);
    const std::vector<float> expected = logits_of(chunked, prompt, 100);
    for (const Isa isa : supported_isas()) {
      Bench bench(2, isa, dtype);
      Bench wide(9, isa, dtype);  // more threads than partitions and kv heads
      for (Bench* one : {&bench, &wide}) {
        logits_of(*one, {prompt.begin(), prompt.begin() + 1099}, 200);
        StepInput last = TinyModel::step({prompt.back()}, 1100);
        last.scores = {{0, 0, 0}};
        std::vector<float> logits(kVocab);
        one->run(last, logits.data());
        CHECK(same_bits(logits, {expected.end() - kVocab, expected.end()}));
      }
      if (isa == Isa::kScalar) continue;                         // slow
      CHECK(same_bits(logits_of(bench, prompt, 20), expected));  // a whole tile of queries and a part of one
    }
  }
}

TEST(sequences_of_one_step_do_not_touch_each_other) {
  const std::vector<int32_t> a = TinyModel::prompt(37, 3);
  const std::vector<int32_t> b = TinyModel::prompt(90, 4);
  Bench alone(1);
  const std::vector<float> expected_a = logits_of(alone, a, 37);
  const std::vector<float> expected_b = logits_of(alone, b, 90);
  Bench together(2);
  StepInput step = TinyModel::step(b, 90, 1, 40);
  step.token_ids.insert(step.token_ids.end(), a.begin(), a.end());
  step.seq_slots = {1, 0};
  step.query_starts = {0, 90, 127};
  step.context_lens = {90, 37};
  step.block_tables.push_back({7, 3, 100});
  for (int32_t row = 0; row < 127; ++row) step.scores.push_back({row, 0, 0});
  std::vector<float> logits(127 * kVocab);
  together.run(step, logits.data());
  CHECK(same_bits({logits.begin(), logits.begin() + 90 * kVocab}, expected_b));
  CHECK(same_bits({logits.begin() + 90 * kVocab, logits.end()}, expected_a));
}

TEST(greedy_tokens_are_the_first_of_the_largest_logits) {
  // Found within the product, by cut; the same as what a pass over the row finds, for every number of
  // threads.
  const std::vector<int32_t> prompt = TinyModel::prompt(40, 8);
  for (const int32_t num_threads : {1, 2, 5}) {
    Bench bench(num_threads);
    StepInput step = TinyModel::step(prompt, 40);
    SlotStart plain;
    plain.prompt_ids = prompt;
    plain.params.temperature = 0.0F;
    SlotStart scored = plain;
    scored.slot = 1;
    scored.params.num_logprobs = 0;
    step.slot_starts = {plain, scored};
    for (int32_t row = 0; row < 40; ++row) {
      step.scores.push_back({row, 0, 0});
      step.sample_rows.push_back(row);
      step.sample_slots.push_back(row % 3 == 0 ? 1 : 0);
    }
    std::vector<float> logits(40 * kVocab);
    const StepResult result = bench.run(step, logits.data());
    for (size_t row = 0; row < 40; ++row) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * kVocab);
      CHECK_EQ(result.samples[row].token,
               static_cast<int32_t>(std::max_element(begin, begin + kVocab) - begin));
    }
  }
}

namespace {

// The greedy tokens of the last rows of a prompt, in a step that asks for nothing else.
std::vector<int32_t> greedy_tokens(Bench& bench, const std::vector<int32_t>& prompt, int32_t num_rows) {
  const auto size = static_cast<int32_t>(prompt.size());
  StepInput step = TinyModel::step(prompt, size);
  SlotStart start;
  start.prompt_ids = prompt;
  start.params.temperature = 0.0F;
  step.slot_starts = {start};
  for (int32_t row = size - num_rows; row < size; ++row) {
    step.sample_rows.push_back(row);
    step.sample_slots.push_back(0);
  }
  std::vector<int32_t> tokens;
  for (const Sampled& sampled : bench.run(step).samples) tokens.push_back(sampled.token);
  return tokens;
}

}  // namespace

TEST(a_search_finds_the_largest_logits) {
  for (uint64_t seed = 30; seed < 40; ++seed) {
    const std::vector<int32_t> prompt = TinyModel::prompt(24, seed);
    Bench reference(1);
    const std::vector<float> logits = logits_of(reference, prompt, 24);
    for (const Isa isa : supported_isas()) {
      for (const int32_t num_threads : {1, 2, 5}) {
        Bench bench(num_threads, isa);
        for (int32_t num_rows = 1; num_rows <= kMostSearchedRows + 1; ++num_rows) {
          const std::vector<int32_t> tokens = greedy_tokens(bench, prompt, num_rows);
          for (int32_t i = 0; i < num_rows; ++i) {
            const auto begin = logits.end() - std::ptrdiff_t{num_rows - i} * kVocab;
            CHECK_EQ(tokens[static_cast<size_t>(i)],
                     static_cast<int32_t>(std::max_element(begin, begin + kVocab) - begin));
          }
        }
      }
    }
  }
}

TEST(few_greedy_rows_are_searched_and_no_others) {
  const std::vector<int32_t> prompt = TinyModel::prompt(24, 50);
  Bench bench(2);
  const int32_t token = greedy_tokens(bench, prompt, 1)[0];
  // With a wrong bound of its group the token is not found any more, where it is searched for.
  const MatrixId head = std::get<LogitsOp>(bench.model.plan->ops.back()).head;
  const float* bounds = bench.model.weights->coarse(head)->bounds;
  const_cast<float&>(bounds[token / kRowGroup]) = -1e9F;
  for (int32_t num_rows = 1; num_rows <= kMostSearchedRows; ++num_rows) {
    CHECK(greedy_tokens(bench, prompt, num_rows).back() != token);
  }
  CHECK_EQ(greedy_tokens(bench, prompt, kMostSearchedRows + 1).back(), token);
  const std::vector<float> logits = logits_of(bench, prompt, 24);
  CHECK_EQ(
      static_cast<int32_t>(std::max_element(logits.end() - kVocab, logits.end()) - (logits.end() - kVocab)),
      token);
}

TEST(sampled_tokens_are_resolved_by_reference) {
  const std::vector<int32_t> prompt = TinyModel::prompt(20, 5);
  Bench bench(2);
  StepInput first = TinyModel::step(prompt, 20);
  SlotStart start;
  start.prompt_ids = prompt;
  start.params.temperature = 0.9F;
  start.params.seed = 11;
  first.slot_starts = {start};
  first.sample_rows = {19};
  first.sample_slots = {0};
  std::vector<int32_t> tokens = prompt;
  tokens.push_back(bench.run(first).samples[0].token);
  for (int32_t i = 0; i < 10; ++i) {
    StepInput next = TinyModel::step({-1}, 21 + i);
    next.sample_rows = {0};
    next.sample_slots = {0};
    tokens.push_back(bench.run(next).samples[0].token);
  }
  // Resumed from the tokens produced so far, the rest is the same.
  Bench resumed(1);
  const std::vector<int32_t> known(tokens.begin(), tokens.begin() + 26);
  StepInput again = TinyModel::step(known, 26, 3);
  start.slot = 3;
  start.output_ids = {known.begin() + 20, known.end()};
  again.slot_starts = {start};
  again.sample_rows = {25};
  again.sample_slots = {3};
  CHECK_EQ(resumed.run(again).samples[0].token, tokens[26]);
}

TEST(copied_blocks_hold_the_same_keys_and_values) {
  const std::vector<int32_t> prompt = TinyModel::prompt(33, 6);
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kQ8}) {
    Bench bench(1, Isa::kScalar, dtype);
    const std::vector<float> expected = logits_of(bench, prompt, 33);
    StepInput step = TinyModel::step({prompt.back()}, 33);
    step.block_tables = {{50, 51, 52}};
    step.copies = {{0, 50}, {1, 51}};
    step.scores = {{0, 0, 0}};
    std::vector<float> logits(kVocab);
    bench.run(step, logits.data());
    CHECK(same_bits(logits, {expected.end() - kVocab, expected.end()}));
  }
}

TEST(kv_dtypes_differ_little) {
  const std::vector<int32_t> prompt = TinyModel::prompt(150, 7);
  Bench f16(1);
  Bench q8(1, Isa::kScalar, KvDtype::kQ8);
  const std::vector<float> expected = logits_of(f16, prompt, 64);
  const std::vector<float> logits = logits_of(q8, prompt, 64);
  double worst = 0;
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::fabs(double{logits[i]} - double{expected[i]}));
    largest = std::max(largest, std::fabs(double{expected[i]}));
  }
  CHECK(worst > 0.0);
  CHECK(worst < 0.1 * largest);  // a random model has large scores; test_quality.py has the limit that counts
}

TEST(bad_steps_are_refused) {
  Bench bench(1);
  const auto refuses = [&](auto&& spoil) {
    StepInput step = TinyModel::step({1, 2, 3}, 3);
    spoil(step);
    CHECK_THROWS(bench.runner.check(step));
  };
  refuses([](StepInput& s) { s.token_ids[1] = kVocab; });
  refuses([](StepInput& s) { s.token_ids[1] = -2; });
  refuses([](StepInput& s) { s.token_ids.clear(); });
  refuses([](StepInput& s) { s.query_starts = {0, 2}; });
  refuses([](StepInput& s) { s.query_starts = {0}; });
  refuses([](StepInput& s) { s.context_lens = {2}; });
  refuses([](StepInput& s) { s.context_lens = {17}; });
  refuses([](StepInput& s) { s.block_tables[0][0] = 128; });
  refuses([](StepInput& s) { s.block_tables[0][0] = -1; });
  refuses([](StepInput& s) { s.seq_slots = {8}; });
  refuses([](StepInput& s) { s.sample_rows = {0}; });
  refuses([](StepInput& s) { s.sample_rows = {3}, s.sample_slots = {0}; });
  refuses([](StepInput& s) { s.sample_rows = {0}, s.sample_slots = {-1}; });
  refuses([](StepInput& s) { s.scores = {{0, kVocab, 0}}; });
  refuses([](StepInput& s) { s.copies = {{0, 128}}; });
  refuses([](StepInput& s) { s.slot_starts = {SlotStart{}}; });
  refuses([](StepInput& s) { s.token_ids.assign(201, 0), s.query_starts = {0, 201}; });
  bench.runner.check(TinyModel::step({1, 2, 3}, 3));
}

TEST(plans_that_do_not_fit_are_refused) {
  const auto refuses = [](auto&& spoil) {
    TinyModel model;
    spoil(*model.plan);
    CHECK_THROWS(verify_plan(*model.plan, *model.weights));
  };
  refuses([](Plan& p) { p.ops.pop_back(); });
  refuses([](Plan& p) { p.hidden = 96; });
  refuses([](Plan& p) { p.vocab = 97; });
  refuses([](Plan& p) { p.kv.head_dim = 48; });
  refuses([](Plan& p) { p.kv.block_tokens = 24; });
  refuses([](Plan& p) { p.kv.num_layers = 2; });
  refuses([](Plan& p) { p.buffers[2].has_f32 = false; });
  refuses([](Plan& p) { p.buffers[5].cols = 64; });
  refuses([](Plan& p) { std::get<EmbedOp>(p.ops[0]).table = 99; });
  refuses([](Plan& p) { std::get<AddNormOp>(p.ops[1]).norm = 99; });
  refuses([](Plan& p) { std::get<QkvOp>(p.ops[2]).rope = 2; });
}

TEST_MAIN()
