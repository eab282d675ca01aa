// A tiny random model with every kind of operation, for tests of the runner and the compute thread.
#pragma once

#include <memory>
#include <numeric>
#include <vector>

#include "kernels/matmul/random_blocks.h"
#include "plan/plan.h"
#include "plan/step.h"
#include "plan/weights.h"

namespace plait {

struct TinyModel {
  static constexpr int32_t kHidden = 64;
  static constexpr int32_t kHeads = 4;
  static constexpr int32_t kKvHeads = 2;
  static constexpr int32_t kHeadDim = 32;
  static constexpr int32_t kFfn = 128;
  static constexpr int32_t kVocab = 96;
  static constexpr int32_t kLayers = 3;

  std::shared_ptr<Plan> plan = std::make_shared<Plan>();
  std::shared_ptr<Weights> weights = std::make_shared<Weights>(size_t{4} << 20);

  // Quantised weights with one float matrix, an output matrix that is searched, head norms and a window
  // in layer 1, post norms in layer 2.
  explicit TinyModel(KvDtype dtype = KvDtype::kF16) {
    plan->hidden = kHidden;
    plan->vocab = kVocab;
    plan->kv = {kLayers, kKvHeads, kHeadDim, 16, dtype};
    plan->buffers = {{"residual", BufferKind::kRows, kHidden, false, false},
                     {"delta", BufferKind::kRows, kHidden, false, false},
                     {"normed", BufferKind::kActs, kHidden, true, true},
                     {"query", BufferKind::kRows, kHeads * kHeadDim, false, false},
                     {"attended", BufferKind::kActs, kHeads * kHeadDim, true, false},
                     {"gated", BufferKind::kActs, kFfn, true, false}};
    plan->ropes = {{RopeStyle::kHalf, std::vector<float>(16, 0.1F)},
                   {RopeStyle::kInterleaved, {1.0F, 0.5F, 0.01F}}};
    const MatrixId table = matrix(GgmlType::kQ8_0, kVocab, kHidden, true);
    plan->ops.emplace_back(EmbedOp{table, 2.0F, 0});
    BufferId delta = -1;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const bool has_head_norms = layer == 1;
      const VectorId post = layer == 2 ? vector(kHidden) : -1;
      plan->ops.emplace_back(AddNormOp{0, delta, post, vector(kHidden), 1e-5F, 2});
      QkvOp qkv;
      qkv.in = 2;
      qkv.wq = matrix(GgmlType::kQ4_1, kHeads * kHeadDim, kHidden);
      qkv.wk = matrix(GgmlType::kQ4_0, kKvHeads * kHeadDim, kHidden);
      qkv.wv = matrix(layer == 0 ? GgmlType::kF32 : GgmlType::kQ5_0, kKvHeads * kHeadDim, kHidden);
      qkv.num_heads = kHeads;
      if (has_head_norms) {
        qkv.q_norm = vector(kHeadDim);
        qkv.k_norm = vector(kHeadDim);
      }
      qkv.eps = 1e-5F;
      qkv.rope = layer % 2;
      qkv.layer = layer;
      qkv.out_q = 3;
      plan->ops.emplace_back(qkv);
      plan->ops.emplace_back(
          AttentionOp{3, layer, kHeads, layer == 1 ? 20 : 0, 0.2F, layer == 2 ? 5.0F : 0.0F, 4});
      plan->ops.emplace_back(MatmulOp{4, matrix(GgmlType::kQ8_0, kHidden, kHeads * kHeadDim), 1});
      plan->ops.emplace_back(AddNormOp{0, 1, -1, vector(kHidden), 1e-5F, 2});
      plan->ops.emplace_back(GatedOp{2, matrix(GgmlType::kQ4_1, kFfn, kHidden),
                                     matrix(GgmlType::kQ5_1, kFfn, kHidden),
                                     layer == 0 ? Activation::kSilu : Activation::kGeluTanh, 5});
      plan->ops.emplace_back(MatmulOp{5, matrix(GgmlType::kQ4_1, kHidden, kFfn), 1});
      delta = 1;
    }
    plan->ops.emplace_back(LogitsOp{0, 1, -1, vector(kHidden), 1e-5F, table, 0.0F});
    verify_plan(*plan, *weights);
  }

  // One step of one sequence in slot 0: `tokens` end at position `context`; block table 0, 1, 2, ...
  static StepInput step(std::vector<int32_t> tokens, int32_t context, int32_t slot = 0,
                        int32_t first_block = 0) {
    StepInput input;
    const auto num_tokens = static_cast<int32_t>(tokens.size());
    input.token_ids = std::move(tokens);
    input.seq_slots = {slot};
    input.query_starts = {0, num_tokens};
    input.context_lens = {context};
    std::vector<int32_t> table(static_cast<size_t>((context + 15) / 16));
    std::iota(table.begin(), table.end(), first_block);
    input.block_tables = {table};
    return input;
  }

  static std::vector<int32_t> prompt(int32_t size, uint64_t seed) {
    SplitMix64 random(seed);
    std::vector<int32_t> tokens(static_cast<size_t>(size));
    for (int32_t& token : tokens) token = random.below(kVocab);
    return tokens;
  }

 private:
  MatrixId matrix(GgmlType type, int32_t rows, int32_t cols, bool is_searched = false) {
    const int64_t num_blocks = int64_t{rows} * cols / block_shape(type).elements;
    const std::vector<std::byte> data = random_blocks(type, num_blocks, ++seed_);
    return weights->add_matrix({std::to_string(seed_), type, data.data(), rows, cols, is_searched}, 1);
  }
  VectorId vector(int32_t num) {
    SplitMix64 random(++seed_);
    std::vector<float> values(static_cast<size_t>(num));
    for (float& value : values) value = 1.0F + 0.5F * random.uniform();
    return weights->add_vector(std::to_string(seed_), GgmlType::kF32,
                               reinterpret_cast<const std::byte*>(values.data()), num);
  }

  uint64_t seed_ = 0;
};

}  // namespace plait
