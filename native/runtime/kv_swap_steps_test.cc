// A sequence whose KV goes away and comes back elsewhere goes on bit for bit, with a compute thread at work.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/test.h"
#include "kv/kv_manager.h"
#include "plan/tiny_model.h"
#include "runtime/compute_thread.h"
#include "runtime/kv_swap.h"

using namespace plait;

namespace {

constexpr int32_t kNumBlocks = 32;
constexpr int32_t kBlockTokens = 16;

// A compute thread whose sequence can be moved to other blocks.
struct Engine {
  Engine(KvDtype dtype, KvSwapOptions options)
      : model(dtype),
        storage(std::make_shared<KvStorage>(model.plan->kv, kNumBlocks)),
        compute(model.plan, model.weights, storage, {Isa::kScalar, 2, {}, {64, 8}}, bell),
        swap(storage, kv.versions(), std::move(options), bell) {}

  template <typename Result, typename Queue>
  Result wait(Queue& queue) {
    Result result;
    for (;;) {
      const uint32_t seen = bell->epoch();
      if (queue.try_pop(result)) return result;
      bell->wait(seen, -1);
    }
  }

  // Runs the sequence's tokens from `first` on (an id of -1 is the token sampled last) and samples one.
  Sampled step(int64_t seq_id, std::vector<int32_t> token_ids, int32_t first, bool is_start) {
    const auto num_tokens = static_cast<int32_t>(token_ids.size());
    CHECK(kv.try_grow(seq_id, first + num_tokens));
    StepInput input = TinyModel::step(token_ids, first + num_tokens);
    const auto blocks = kv.block_table(seq_id);
    input.block_tables = {{blocks.begin(), blocks.end()}};
    input.sample_rows = {num_tokens - 1};
    input.sample_slots = {0};
    if (is_start) {
      SlotStart start;
      start.slot = 0;
      start.prompt_ids = token_ids;
      start.params.temperature = 0;
      input.slot_starts = {start};
    }
    CHECK(compute.try_submit(std::move(input)));
    const auto result = wait<StepResult>(compute);
    CHECK_EQ(result.error, std::string());
    kv.commit(seq_id, std::vector<int32_t>(static_cast<size_t>(num_tokens), 1));
    return result.samples[0];
  }

  // 40 greedy tokens after a prompt; away and back before each token in `at`.
  std::vector<Sampled> generate(int64_t seq_id, const std::vector<int32_t>& at) {
    const std::vector<int32_t> prompt = TinyModel::prompt(37, 5);
    auto num_tokens = static_cast<int32_t>(prompt.size());
    kv.open_sequence(seq_id, {}, "", false);
    std::vector<Sampled> samples = {step(seq_id, prompt, 0, true)};
    for (int32_t i = 1; i < 40; ++i) {
      if (std::find(at.begin(), at.end(), i) != at.end()) move(seq_id, num_tokens);
      samples.push_back(step(seq_id, {samples.back().token}, num_tokens++, false));
    }
    kv.close_sequence(seq_id);
    return samples;
  }

  void move(int64_t seq_id, int32_t num_tokens) {
    const BlockSnapshot snapshot = kv.capture(seq_id);
    CHECK_EQ(snapshot.num_tokens, num_tokens);
    CHECK(swap.try_save(seq_id, snapshot));
    CHECK(wait<KvTransfer>(swap).ok);
    kv.close_sequence(seq_id);
    for (int32_t block = 0; block < kNumBlocks; ++block) {
      std::memset(storage->block(block), 0x5a, storage->layout().block_bytes());
    }
    // A stranger takes the blocks that were free last.
    kv.open_sequence(1000 + num_tokens, {}, "", false);
    CHECK(kv.try_grow(1000 + num_tokens, kBlockTokens * 3));
    kv.open_sequence(seq_id, {}, "", false);
    CHECK(kv.try_grow(seq_id, num_tokens));
    const auto blocks = kv.block_table(seq_id);
    CHECK(blocks[0] != snapshot.blocks[0]);
    CHECK(swap.try_fetch(seq_id, {blocks.begin(), blocks.end()}));
    CHECK(wait<KvTransfer>(swap).ok);
    kv.commit(seq_id, std::vector<int32_t>(static_cast<size_t>(num_tokens), 1));
    swap.drop(seq_id);
    kv.close_sequence(1000 + num_tokens);
  }

  TinyModel model;
  KvManager kv{kNumBlocks, kBlockTokens, "m"};
  std::shared_ptr<KvStorage> storage;
  std::shared_ptr<Doorbell> bell = std::make_shared<Doorbell>();
  ComputeThread compute;
  KvSwap swap;
};

}  // namespace

TEST(a_sequence_goes_on_bit_for_bit_in_other_blocks) {
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kQ8}) {
    for (const bool is_file : {false, true}) {
      Engine engine(dtype, is_file ? KvSwapOptions{0, "/tmp", 0} : KvSwapOptions{1 << 24, "", 0});
      const std::vector<Sampled> whole = engine.generate(1, {});
      const std::vector<Sampled> moved = engine.generate(2, {1, 2, 11, 12, 27, 39});
      CHECK_EQ(whole.size(), moved.size());
      for (size_t i = 0; i < whole.size(); ++i) {
        CHECK_EQ(whole[i].token, moved[i].token);
        CHECK(std::memcmp(&whole[i].logprob, &moved[i].logprob, sizeof(float)) == 0);
      }
      CHECK(engine.swap.counters().num_saved_blocks >= 6 * 3);
      CHECK_EQ(engine.swap.counters().num_saved_blocks, engine.swap.counters().num_fetched_blocks);
      CHECK_EQ(engine.kv.num_free_blocks(), kNumBlocks);
    }
  }
}

TEST_MAIN()
