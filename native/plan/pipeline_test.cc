#include "plan/pipeline.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>

#include "base/test.h"
#include "plan/micro_batch.h"
#include "plan/runner.h"
#include "plan/tiny_model.h"

using namespace plait;

namespace {

constexpr int32_t kMaxTokens = 200;
constexpr int32_t kMaxSlots = 16;
constexpr int32_t kNumBlocks = 768;

// What a series of steps gave: every sample, score and captured logit, and the KV cache afterwards.
struct Outcome {
  std::vector<Sampled> samples;
  std::vector<Sampled> scores;
  std::vector<float> logits;
  std::vector<std::byte> kv;
};

// The scalar reference takes long; runner_test compares all with it.
Isa fast_isa() { return supported_isas().back(); }

bool same(const std::vector<Sampled>& a, const std::vector<Sampled>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Sampled& x, const Sampled& y) {
    return x.token == y.token && std::memcmp(&x.logprob, &y.logprob, sizeof(float)) == 0 &&
           x.rank == y.rank && x.top == y.top;
  });
}

bool same(const Outcome& a, const Outcome& b) {
  return same(a.samples, b.samples) && same(a.scores, b.scores) && a.logits.size() == b.logits.size() &&
         std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)) == 0 && a.kv == b.kv;
}

Outcome run_all(const std::vector<StepInput>& steps, int32_t num_threads, Parallelism parallelism,
                Isa isa = Isa::kScalar, KvDtype dtype = KvDtype::kF16) {
  const TinyModel model(dtype);
  Team team(num_threads, {});
  const auto kv = std::make_shared<KvStorage>(model.plan->kv, kNumBlocks);
  Runner runner(model.plan, model.weights, kv, kernel_table(isa), team, {kMaxTokens, kMaxSlots}, parallelism);
  Outcome outcome;
  for (const StepInput& step : steps) {
    runner.check(step);
    std::vector<float> logits(step.scores.size() * TinyModel::kVocab);
    StepResult result;
    runner.run(step, result, logits.data());
    CHECK_EQ(result.num_tokens, static_cast<int32_t>(step.token_ids.size()));
    outcome.samples.insert(outcome.samples.end(), result.samples.begin(), result.samples.end());
    outcome.scores.insert(outcome.scores.end(), result.scores.begin(), result.scores.end());
    outcome.logits.insert(outcome.logits.end(), logits.begin(), logits.end());
  }
  outcome.kv.assign(kv->pool(), kv->pool() + kv->layout().block_bytes() * kNumBlocks);
  return outcome;
}

// Sequences that come, are computed in slices of any length, fork, and decode, as an engine would step them.
class Traffic {
 public:
  explicit Traffic(uint64_t seed) : random_(seed) {
    std::iota(free_blocks_.begin(), free_blocks_.end(), 0);
    std::iota(free_slots_.begin(), free_slots_.end(), 0);
  }

  std::vector<StepInput> steps(int32_t num_steps) {
    std::vector<StepInput> steps;
    for (int32_t i = 0; i < num_steps; ++i) {
      while (free_slots_.size() > 2 && (seqs_.size() < 3 || random_.below(2) == 0)) arrive();
      steps.push_back(next_step(i));
    }
    return steps;
  }

 private:
  struct Seq {
    int32_t slot = 0;
    int32_t num_filled = 0;
    int32_t num_left = 0;  // tokens to sample
    bool is_shared = false;
    std::vector<int32_t> prompt, table;
  };

  template <typename T>
  static T take(std::vector<T>& free) {
    const T last = free.back();
    free.pop_back();
    return last;
  }

  void arrive() {
    constexpr int32_t kLengths[] = {1, 2, 15, 16, 17, 33, 60, 130, 200, 560};
    Seq seq;
    seq.slot = take(free_slots_);
    seq.num_left = 1 + random_.below(10);
    seq.prompt = TinyModel::prompt(kLengths[random_.below(10)], random_.next());
    starts_.push_back(start_of(seq));
    seqs_.push_back(std::move(seq));
  }

  SlotStart start_of(const Seq& seq) {
    SlotStart start;
    start.slot = seq.slot;
    start.prompt_ids = seq.prompt;
    start.params.temperature = random_.below(2) == 0 ? 0.0F : 1.0F;
    start.params.seed = random_.next();
    start.params.num_logprobs = random_.below(3);
    start.params.repetition_penalty = random_.below(2) == 0 ? 1.0F : 1.2F;
    return start;
  }

  StepInput next_step(int32_t step_id) {
    StepInput step;
    step.step_id = step_id;
    step.query_starts = {0};
    step.copies = std::move(copies_);
    copies_.clear();
    std::vector<Seq> forks;
    for (Seq& seq : seqs_) {
      const auto length = static_cast<int32_t>(seq.prompt.size());
      const int32_t room = kMaxTokens - static_cast<int32_t>(step.token_ids.size());
      if (room == 0) break;
      const bool is_prefill = seq.num_filled < length;
      add_rows(step, seq, is_prefill ? std::min({1 + random_.below(150), length - seq.num_filled, room}) : 1);
      if (seq.num_filled < length) continue;
      sample(step, seq);
      if (is_prefill && !free_slots_.empty() && random_.below(2) == 0) forks.push_back(fork(step, seq));
    }
    step.slot_starts = std::move(starts_);
    starts_.clear();
    for (const Seq& seq : seqs_) {
      if (seq.num_left > 0) continue;
      free_slots_.push_back(seq.slot);
      // Blocks that two sequences hold are not used again: who of them is last is not counted here.
      if (!seq.is_shared) free_blocks_.insert(free_blocks_.end(), seq.table.begin(), seq.table.end());
    }
    std::erase_if(seqs_, [](const Seq& seq) { return seq.num_left <= 0; });
    seqs_.insert(seqs_.begin(), forks.begin(), forks.end());
    return step;
  }

  void add_rows(StepInput& step, Seq& seq, int32_t size) {
    for (int32_t i = 0; i < size; ++i) {
      const auto position = static_cast<size_t>(seq.num_filled + i);
      step.token_ids.push_back(position < seq.prompt.size() ? seq.prompt[position] : -1);
      if (random_.below(8) != 0) continue;
      const auto row = static_cast<int32_t>(step.token_ids.size()) - 1;
      step.scores.push_back({row, random_.below(TinyModel::kVocab), random_.below(3)});
    }
    seq.num_filled += size;
    while (seq.table.size() * 16 < static_cast<size_t>(seq.num_filled))
      seq.table.push_back(take(free_blocks_));
    step.seq_slots.push_back(seq.slot);
    step.query_starts.push_back(static_cast<int32_t>(step.token_ids.size()));
    step.context_lens.push_back(seq.num_filled);
    step.block_tables.push_back(seq.table);
  }

  void sample(StepInput& step, Seq& seq) {
    step.sample_rows.push_back(static_cast<int32_t>(step.token_ids.size()) - 1);
    step.sample_slots.push_back(seq.slot);
    --seq.num_left;
  }

  // A second choice of a sequence whose prompt is complete: it samples from the same row, shares the full
  // blocks, and gets a copy of the block that is not full before the next step.
  Seq fork(StepInput& step, Seq& seq) {
    seq.is_shared = true;
    seq.num_left = std::max(seq.num_left, 1);
    Seq other = seq;
    other.slot = take(free_slots_);
    other.num_left = 1 + random_.below(10);
    if (other.num_filled % 16 != 0) {
      other.table.back() = take(free_blocks_);
      copies_.emplace_back(seq.table.back(), other.table.back());
    }
    starts_.push_back(start_of(other));
    sample(step, other);
    other.num_left = std::max(other.num_left, 1);
    return other;
  }

  SplitMix64 random_;
  std::vector<Seq> seqs_;
  std::vector<int32_t> free_blocks_ = std::vector<int32_t>(kNumBlocks);
  std::vector<int32_t> free_slots_ = std::vector<int32_t>(kMaxSlots);
  std::vector<SlotStart> starts_;
  std::vector<std::pair<int32_t, int32_t>> copies_;  // of the next step
};

// A step of sequences with so many rows each, for cut_row.
StepInput rows(const std::vector<int32_t>& sizes) {
  StepInput step;
  step.query_starts = {0};
  for (int32_t size : sizes) step.query_starts.push_back(step.query_starts.back() + size);
  step.token_ids.resize(static_cast<size_t>(step.query_starts.back()));
  return step;
}

}  // namespace

TEST(operations_belong_to_stages) {
  const TinyModel model;
  const std::vector<PlanPart> parts = plan_parts(*model.plan);
  CHECK_EQ(parts.size(), size_t{2 + 2 * TinyModel::kLayers});
  CHECK(parts.front().stage == Stage::kWhole && parts.front().end == 1);
  CHECK(parts.back().stage == Stage::kWhole);
  for (int32_t layer = 0; layer < TinyModel::kLayers; ++layer) {
    const PlanPart& attention = parts[static_cast<size_t>(1 + 2 * layer)];
    const PlanPart& ffn = parts[static_cast<size_t>(2 + 2 * layer)];
    CHECK(attention.stage == Stage::kAttention && ffn.stage == Stage::kFfn);
    CHECK_EQ(attention.end - attention.begin, 4);  // norm, qkv, attention, product
    CHECK_EQ(ffn.end - ffn.begin, 3);              // norm, gate and up, down
    CHECK_EQ(attention.end, ffn.begin);
  }
  std::istringstream lines(describe_plan(*model.plan, *model.weights));
  std::vector<std::string> stages;
  for (std::string line; std::getline(lines, line);) stages.push_back(line.substr(0, line.find(' ')));
  CHECK_EQ(stages.size(), model.plan->ops.size());
  for (const PlanPart& part : parts) {
    for (int32_t i = part.begin; i < part.end; ++i) {
      CHECK_EQ(stages[static_cast<size_t>(i)], std::string(stage_name(part.stage)));
    }
  }
}

TEST(steps_are_cut_between_sequences_or_in_the_middle_of_one) {
  CHECK_EQ(cut_row(rows({1})), 0);
  CHECK_EQ(cut_row(rows({kMinCutRows - 1})), 0);
  CHECK_EQ(cut_row(rows(std::vector<int32_t>(32, 1))), 16);
  CHECK_EQ(cut_row(rows({512})), 256);
  CHECK_EQ(cut_row(rows({100, 100})), 100);
  CHECK_EQ(cut_row(rows({90, 110})), 90);
  CHECK_EQ(cut_row(rows({1, 1, 300, 1})), 2 + 144);  // whole tiles of the long one
  CHECK_EQ(cut_row(rows({5, 6, 5})), 8);
  for (int32_t first = 1; first < 60; ++first) {
    for (int32_t second = 1; second < 60; ++second) {
      for (int32_t third : {1, 7, 40}) {
        const int32_t total = first + second + third;
        const int32_t cut = cut_row(rows({first, second, third}));
        CHECK_EQ(cut == 0, total < kMinCutRows);
        CHECK(cut == 0 || (cut >= total / 4 && cut <= total - total / 4));
      }
    }
  }
}

TEST(pipeline_gives_the_bits_of_tensor) {
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kQ8}) {
    const std::vector<StepInput> steps = Traffic(dtype == KvDtype::kF16 ? 1 : 2).steps(20);
    int32_t num_cut = 0;
    for (const StepInput& step : steps) num_cut += cut_row(step) > 0 ? 1 : 0;
    CHECK(num_cut > 10);
    const Outcome expected = run_all(steps, 1, Parallelism::kTensor, fast_isa(), dtype);
    CHECK(!expected.samples.empty() && !expected.scores.empty());
    for (int32_t num_threads : {2, 3, 5}) {
      CHECK(same(run_all(steps, num_threads, Parallelism::kPipeline, fast_isa(), dtype), expected));
    }
    for (const Isa isa : supported_isas()) {
      CHECK(same(run_all(steps, 2, Parallelism::kPipeline, isa, dtype), expected));
    }
  }
}

TEST(pipeline_gives_the_same_bits_again_and_again) {
  const std::vector<StepInput> steps = Traffic(3).steps(12);
  const Outcome expected = run_all(steps, 1, Parallelism::kTensor, fast_isa());
  for (int32_t round = 0; round < 10; ++round) {
    CHECK(same(run_all(steps, 2 + round % 3, Parallelism::kPipeline, fast_isa()), expected));
  }
}

TEST(a_slice_that_is_cut_sees_what_its_first_half_wrote) {
  // One prompt in steps of any size: every step is cut inside the sequence, and beyond 512 positions too.
  const std::vector<int32_t> prompt = TinyModel::prompt(700, 9);
  std::vector<StepInput> steps;
  for (const int32_t chunk : {200, 16, 17, 31, 180, 33, 100, 123}) {
    const int32_t begin = steps.empty() ? 0 : steps.back().context_lens[0];
    steps.push_back(TinyModel::step({prompt.begin() + begin, prompt.begin() + begin + chunk}, begin + chunk));
    CHECK(cut_row(steps.back()) > 0);
    for (int32_t row = 0; row < chunk; ++row) steps.back().scores.push_back({row, 0, 1});
  }
  const Outcome expected = run_all(steps, 1, Parallelism::kTensor, fast_isa());
  for (int32_t num_threads : {2, 3, 4}) {
    CHECK(same(run_all(steps, num_threads, Parallelism::kPipeline, fast_isa()), expected));
  }
}

TEST(long_contexts_are_merged_in_both_halves) {
  std::vector<StepInput> steps;
  for (int32_t end = 200; end <= 600; end += 200) {
    steps.push_back(TinyModel::step(TinyModel::prompt(200, static_cast<uint64_t>(end)), end));
  }
  StepInput decode;
  decode.query_starts = {0};
  for (int32_t i = 0; i < 16; ++i) {  // all share the long context but for its last block
    decode.token_ids.push_back(i);
    decode.seq_slots.push_back(i);
    decode.query_starts.push_back(i + 1);
    decode.context_lens.push_back(601);
    decode.block_tables.push_back(steps.back().block_tables[0]);
    int32_t& last = decode.block_tables.back().back();
    decode.copies.emplace_back(last, 60 + i);
    last = 60 + i;
    decode.scores.push_back({i, i, 2});
  }
  steps.push_back(decode);
  CHECK_EQ(cut_row(decode), 8);
  const Outcome expected = run_all(steps, 1, Parallelism::kTensor, fast_isa());
  for (int32_t num_threads : {2, 3}) {
    CHECK(same(run_all(steps, num_threads, Parallelism::kPipeline, fast_isa()), expected));
  }
}

TEST(a_pipeline_needs_two_threads) {
  const TinyModel model;
  CHECK_THROWS(Pipeline(*model.plan, *model.weights, 1));
  for (int32_t num_threads = 2; num_threads < 9; ++num_threads) {
    const Pipeline pipeline(*model.plan, *model.weights, num_threads);
    CHECK(pipeline.num_members(Stage::kAttention) >= 1);
    CHECK(pipeline.num_members(Stage::kFfn) >= 1);
    CHECK_EQ(pipeline.num_members(Stage::kAttention) + pipeline.num_members(Stage::kFfn), num_threads);
  }
}

TEST_MAIN()
