// The operations of a step before attention and logits: how each is divided over a crew.
#include <algorithm>
#include <cstring>

#include "kernels/matmul/product_cut.h"
#include "plan/runner.h"

namespace plait {

void Runner::run_op(const EmbedOp& op, MicroBatch& batch, Crew& crew) {
  const PackedMatrix& table = weights_->matrix(op.table);
  float* out = batch.rows_of(op.out);
  const auto cols = static_cast<size_t>(table.cols);
  constexpr int32_t kRows = 8;
  crew.run((batch.num_tokens + kRows - 1) / kRows, [&](int32_t chunk, int32_t) {
    const int32_t end = std::min(batch.num_tokens, (chunk + 1) * kRows);
    for (int32_t row = chunk * kRows; row < end; ++row) {
      float* x = out + static_cast<size_t>(row) * cols;
      unpack_row(table, batch.tokens[static_cast<size_t>(row)], x);
      if (op.scale != 1.0F) {
        for (size_t i = 0; i < cols; ++i) x[i] *= op.scale;
      }
    }
  });
}

void Runner::run_op(const AddNormOp& op, MicroBatch& batch, Crew& crew) {
  const int32_t cols = plan_->hidden;
  float* residual = batch.rows_of(op.residual);
  float* delta = op.delta >= 0 ? batch.rows_of(op.delta) : nullptr;
  const float* norm = weights_->vector(op.norm).data();
  const float* post = op.post_norm >= 0 ? weights_->vector(op.post_norm).data() : nullptr;
  const Acts& out = batch.acts_of(op.out);
  constexpr int32_t kRows = 4;
  crew.run((batch.num_tokens + kRows - 1) / kRows, [&](int32_t chunk, int32_t member) {
    float* scratch = members_[static_cast<size_t>(member)].tile.data();
    const int32_t end = std::min(batch.num_tokens, (chunk + 1) * kRows);
    for (int32_t row = chunk * kRows; row < end; ++row) {
      const size_t offset = static_cast<size_t>(row) * static_cast<size_t>(cols);
      if (delta != nullptr) {
        if (post != nullptr) kernels_.rms_norm(delta + offset, post, op.eps, cols, delta + offset);
        kernels_.add(residual + offset, delta + offset, cols);
      }
      kernels_.rms_norm(residual + offset, norm, op.eps, cols, scratch);
      kernels_.quantize(scratch, row, 0, cols, out);
    }
  });
}

void Runner::run_op(const MatmulOp& op, MicroBatch& batch, Crew& crew) {
  const PackedMatrix& weight = weights_->matrix(op.weight);
  const Acts& in = batch.acts_of(op.in);
  float* out = batch.rows_of(op.out);
  const ProductCut c = cut_product(weight.rows, batch.num_tokens, kRowUnit, crew.num_workers());
  crew.run(c.num_chunks(), [&](int32_t chunk, int32_t) {
    const ProductArea a = c.area(chunk);
    kernels_.matmul(weight, in, a.row0, a.row1, a.t0, a.t1,
                    out + static_cast<int64_t>(a.t0) * weight.rows + a.row0, weight.rows);
  });
}

void Runner::run_op(const GatedOp& op, MicroBatch& batch, Crew& crew) {
  const PackedMatrix& gate = weights_->matrix(op.gate);
  const PackedMatrix& up = weights_->matrix(op.up);
  const Acts& in = batch.acts_of(op.in);
  const Acts& out = batch.acts_of(op.out);
  const ProductCut c = cut_product(gate.rows, batch.num_tokens, kBlock, crew.num_workers());
  crew.run(c.num_chunks(), [&](int32_t chunk, int32_t member) {
    const ProductArea a = c.area(chunk);
    const int32_t rows = a.row1 - a.row0;
    // [tokens][gate rows, up rows]
    float* tile = members_[static_cast<size_t>(member)].tile.data();
    kernels_.matmul(gate, in, a.row0, a.row1, a.t0, a.t1, tile, 2 * rows);
    kernels_.matmul(up, in, a.row0, a.row1, a.t0, a.t1, tile + rows, 2 * rows);
    for (int32_t t = a.t0; t < a.t1; ++t) {
      float* row = tile + static_cast<int64_t>(t - a.t0) * 2 * rows;
      kernels_.gated_act(row, row + rows, rows, op.activation, row);
      kernels_.quantize(row, t, a.row0, a.row1, out);
    }
  });
}

// Norms (when the model has them) and rotates one head of the tokens [t0, t1), in place.
void Runner::rotate_heads(const QkvOp& op, VectorId norm, const MicroBatch& batch, float* rows,
                          int64_t stride, int32_t t0, int32_t t1) {
  const int32_t head_dim = plan_->kv.head_dim;
  for (int32_t t = t0; t < t1; ++t) {
    float* head = rows + (t - t0) * stride;
    if (norm >= 0) kernels_.rms_norm(head, weights_->vector(norm).data(), op.eps, head_dim, head);
    if (op.rope < 0) continue;
    const RopeTable& rope = plan_->ropes[static_cast<size_t>(op.rope)];
    const size_t half = rope.inverse_freqs.size();
    const size_t base =
        rope_offsets_[static_cast<size_t>(op.rope)] + static_cast<size_t>(batch.first_row + t) * half;
    kernels_.rope(head, static_cast<int32_t>(2 * half), rope_cos_.data() + base, rope_sin_.data() + base,
                  rope.style);
  }
}

// One chunk is one head of some tokens: a kv head (K and V, which go to the cache) or a query head. The kv
// heads come first, since they are the longer chunks.
void Runner::run_op(const QkvOp& op, MicroBatch& batch, Crew& crew) {
  const PackedMatrix& wq = weights_->matrix(op.wq);
  const PackedMatrix& wk = weights_->matrix(op.wk);
  const PackedMatrix& wv = weights_->matrix(op.wv);
  const Acts& in = batch.acts_of(op.in);
  float* out_q = batch.rows_of(op.out_q);
  const KvLayout& layout = plan_->kv;
  const int32_t head_dim = layout.head_dim;
  const int32_t tokens_per_chunk =
      cut_product(head_dim, batch.num_tokens, head_dim, crew.num_workers()).tokens_per_cut;
  const int32_t num_token_cuts = (batch.num_tokens + tokens_per_chunk - 1) / tokens_per_chunk;
  const int32_t num_units = layout.num_kv_heads + op.num_heads;
  crew.run(num_units * num_token_cuts, [&](int32_t chunk, int32_t member) {
    const int32_t unit = chunk / num_token_cuts;
    const int32_t t0 = chunk % num_token_cuts * tokens_per_chunk;
    const int32_t t1 = std::min(batch.num_tokens, t0 + tokens_per_chunk);
    if (unit >= layout.num_kv_heads) {
      const int32_t head = unit - layout.num_kv_heads;
      float* rows = out_q + static_cast<int64_t>(t0) * wq.rows + head * head_dim;
      kernels_.matmul(wq, in, head * head_dim, (head + 1) * head_dim, t0, t1, rows, wq.rows);
      rotate_heads(op, op.q_norm, batch, rows, wq.rows, t0, t1);
      return;
    }
    const int32_t head = unit;
    float* k = members_[static_cast<size_t>(member)].tile.data();
    float* v = k + head_dim;
    const int64_t stride = int64_t{2} * head_dim;
    kernels_.matmul(wk, in, head * head_dim, (head + 1) * head_dim, t0, t1, k, stride);
    kernels_.matmul(wv, in, head * head_dim, (head + 1) * head_dim, t0, t1, v, stride);
    rotate_heads(op, op.k_norm, batch, k, stride, t0, t1);
    for (int32_t t = t0; t < t1; ++t) {
      const auto row = static_cast<size_t>(t);
      kernels_.kv_write(layout, kv_->block(batch.blocks[row]), op.layer, head,
                        batch.positions[row] % layout.block_tokens, k + (t - t0) * stride,
                        v + (t - t0) * stride);
    }
  });
}

}  // namespace plait
