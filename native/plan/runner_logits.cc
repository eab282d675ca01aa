// The end of a step: logits of the rows that are asked for, a few rows at a time, and sampling from them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "kernels/matmul/product_cut.h"
#include "kernels/sample/row_passes.h"
#include "plan/runner.h"

namespace plait {

namespace {

// Where `row` stands among the sorted rows of a batch of logits; -1 when it is of another batch.
int64_t index_of(std::span<const int32_t> rows, int32_t row) {
  const auto found = std::lower_bound(rows.begin(), rows.end(), row);
  return found == rows.end() || *found != row ? -1 : found - rows.begin();
}

}  // namespace

// The rows of all micro-batches, and the whole team.
void Runner::run_op(const LogitsOp& op, MicroBatch&, Crew&) {
  std::vector<int32_t> rows = step_->sample_rows;
  for (const ScoreRow& score : step_->scores) rows.push_back(score.row);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  for (size_t first = 0; first < rows.size(); first += kLogitRows) {
    const std::span<const int32_t> batch(rows.data() + first,
                                         std::min<size_t>(kLogitRows, rows.size() - first));
    find_largest_wanted(batch);
    logits_of(op, batch);
    const int64_t begin = monotonic_ns();
    sample_rows(batch);
    sample_ns_ += monotonic_ns() - begin;
  }
  for (size_t i = 0; i < step_->sample_slots.size(); ++i) {
    SlotState& slot = slots_[static_cast<size_t>(step_->sample_slots[i])];
    // The step after this one is on its way already and needs some token; nobody takes what it computes.
    slot.last_token = std::max(result_->samples[i].token, 0);
    slot.history.append(slot.last_token);
  }
}

// Rows of greedy requests that ask for nothing else: nobody looks through them after the product.
void Runner::find_largest_wanted(std::span<const int32_t> rows) {
  is_largest_wanted_.assign(rows.size(), 0);
  for (size_t i = 0; i < step_->sample_rows.size(); ++i) {
    const int64_t index = index_of(rows, step_->sample_rows[i]);
    if (index < 0) continue;
    const SlotState& slot = slots_[static_cast<size_t>(step_->sample_slots[i])];
    if (takes_largest(slot.params, slot.history)) is_largest_wanted_[static_cast<size_t>(index)] = 1;
  }
}

int32_t Runner::largest_of(size_t row) const {
  const LargestLogit* of_cuts = &largest_[row * num_logit_cuts_];
  LargestLogit best = of_cuts[0];
  for (size_t i = 1; i < num_logit_cuts_; ++i) {
    if (of_cuts[i].value > best.value) best = of_cuts[i];
  }
  return best.token;
}

void Runner::logits_of(const LogitsOp& op, std::span<const int32_t> rows) {
  const int32_t hidden = plan_->hidden;
  const auto num_rows = static_cast<int32_t>(rows.size());
  const PackedMatrix& head = weights_->matrix(op.head);
  const float* residual = whole_.rows_of(op.residual);
  const float* delta = op.delta >= 0 ? whole_.rows_of(op.delta) : nullptr;
  Acts acts = logit_acts_;
  acts.num_tokens = num_rows;
  if (is_float_kind(head.kind)) {
    acts.q8 = nullptr;
  } else {
    acts.f32 = nullptr;
  }
  team_.run(num_rows, [&](int32_t i, int32_t member) {
    const auto offset = static_cast<size_t>(rows[static_cast<size_t>(i)]) * static_cast<size_t>(hidden);
    float* x = logit_hidden_ + static_cast<size_t>(i) * static_cast<size_t>(hidden);
    std::memcpy(x, residual + offset, static_cast<size_t>(hidden) * sizeof(float));
    if (delta != nullptr) {
      float* scratch = members_[static_cast<size_t>(member)].tile.data();
      std::memcpy(scratch, delta + offset, static_cast<size_t>(hidden) * sizeof(float));
      if (op.post_norm >= 0) {
        kernels_.rms_norm(scratch, weights_->vector(op.post_norm).data(), op.eps, hidden, scratch);
      }
      kernels_.add(x, scratch, hidden);
    }
    kernels_.rms_norm(x, weights_->vector(op.norm).data(), op.eps, hidden, x);
    kernels_.quantize(x, i, 0, hidden, acts);
  });
  const ProductCut c = cut_product(head.rows, num_rows, kRowUnit, team_.num_threads());
  num_logit_cuts_ = static_cast<size_t>(c.num_row_cuts);
  largest_.resize(rows.size() * num_logit_cuts_);
  team_.run(c.num_chunks(), [&](int32_t chunk, int32_t) {
    const ProductArea a = c.area(chunk);
    float* out = logits_ + static_cast<int64_t>(a.t0) * head.rows + a.row0;
    kernels_.matmul(head, acts, a.row0, a.row1, a.t0, a.t1, out, head.rows);
    for (int32_t t = a.t0; t < a.t1; ++t, out += head.rows) {
      const int32_t num = a.row1 - a.row0;
      if (op.softcap > 0) {
        for (int32_t n = 0; n < num; ++n) out[n] = op.softcap * std::tanh(out[n] / op.softcap);
      }
      if (is_largest_wanted_[static_cast<size_t>(t)] == 0) continue;
      // Infinity stays what it is, so that the largest of all cuts is what row_argmax() finds in the row.
      const auto best = static_cast<int32_t>(row_argmax(out, static_cast<size_t>(num)));
      const bool is_number = out[best] == out[best];
      largest_[static_cast<size_t>(t) * num_logit_cuts_ + static_cast<size_t>(a.row0 / c.rows_per_cut)] = {
          is_number ? out[best] : -std::numeric_limits<float>::infinity(), a.row0 + best};
    }
  });
}

// Samples and scores every request for a row of this batch of logits. One chunk is one request.
void Runner::sample_rows(std::span<const int32_t> rows) {
  const auto vocab = static_cast<size_t>(plan_->vocab);
  const auto num_samples = static_cast<int32_t>(step_->sample_rows.size());
  const auto num_scores = static_cast<int32_t>(step_->scores.size());
  static constexpr TraceName kTrace = {"sample", "operation", {"rows"}};
  const TraceScope trace(kTrace, {num_samples + num_scores});
  team_.run(num_samples + num_scores, [&](int32_t chunk, int32_t member) {
    const bool is_sample = chunk < num_samples;
    const auto i = static_cast<size_t>(is_sample ? chunk : chunk - num_samples);
    const int32_t row = is_sample ? step_->sample_rows[i] : step_->scores[i].row;
    const int64_t index = index_of(rows, row);
    if (index < 0) return;
    const std::span<const float> logits(logits_ + static_cast<size_t>(index) * vocab, vocab);
    SampleScratch& scratch = members_[static_cast<size_t>(member)].sample;
    if (is_sample) {
      const SlotState& slot = slots_[static_cast<size_t>(step_->sample_slots[i])];
      Sampled& sampled = result_->samples[i];
      if (takes_largest(slot.params, slot.history)) {
        take_token(largest_of(static_cast<size_t>(index)), sampled);
      } else {
        sample_row(logits, slot.params, slot.history, static_cast<uint64_t>(slot.history.num_output), scratch,
                   sampled);
      }
      const float chosen = logits[static_cast<size_t>(sampled.token)];
      if (clean_logit(chosen) == -std::numeric_limits<float>::infinity()) sampled.token = kNoToken;
    } else {
      score_row(logits, step_->scores[i].token, step_->scores[i].num_top, scratch, result_->scores[i]);
      if (capture_ != nullptr) std::memcpy(capture_ + i * vocab, logits.data(), vocab * sizeof(float));
    }
  });
}

}  // namespace plait
