// The end of a step: logits of the rows that are asked for, a few rows at a time, and sampling from them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "kernels/matmul/coarse.h"
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

// Of logits [token0, token0 + num), which stand at `logits`. Infinity stays what it is, so that the largest
// of several parts is what row_argmax() finds in the whole row.
LargestLogit first_largest(const float* logits, int32_t num, int32_t token0) {
  const auto best = static_cast<int32_t>(row_argmax(logits, static_cast<size_t>(num)));
  const bool is_number = logits[best] == logits[best];
  return {is_number ? logits[best] : -std::numeric_limits<float>::infinity(), token0 + best};
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

const LargestLogit& Runner::largest_of(size_t row) const {
  const LargestLogit* best = &largest_[row * num_logit_cuts_];
  for (const LargestLogit* cut = best; cut != &largest_[row * num_logit_cuts_] + num_logit_cuts_; ++cut) {
    if (cut->value > best->value) best = cut;
  }
  return *best;
}

void Runner::logits_of(const LogitsOp& op, std::span<const int32_t> rows) {
  const CoarseMatrix* coarse = weights_->coarse(op.head);
  const bool is_search = coarse != nullptr && op.softcap == 0 && rows.size() <= kMostSearchedRows &&
                         std::ranges::all_of(is_largest_wanted_, [](uint8_t is_wanted) { return is_wanted; });
  const Acts acts = normed_rows(op, rows);
  if (is_search) {
    search_largest(op, *coarse, acts);
  } else {
    all_logits(op, acts);
  }
}

Acts Runner::normed_rows(const LogitsOp& op, std::span<const int32_t> rows) {
  const int32_t hidden = plan_->hidden;
  const auto num_rows = static_cast<int32_t>(rows.size());
  const float* residual = whole_.rows_of(op.residual);
  const float* delta = op.delta >= 0 ? whole_.rows_of(op.delta) : nullptr;
  Acts acts = logit_acts_;
  acts.num_tokens = num_rows;
  if (is_float_kind(weights_->matrix(op.head).kind)) {
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
  return acts;
}

void Runner::all_logits(const LogitsOp& op, const Acts& acts) {
  const PackedMatrix& head = weights_->matrix(op.head);
  const ProductCut c = cut_product(head.rows, acts.num_tokens, kRowUnit, team_.num_threads());
  num_logit_cuts_ = static_cast<size_t>(c.num_row_cuts);
  largest_.resize(static_cast<size_t>(acts.num_tokens) * num_logit_cuts_);
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
      largest_[static_cast<size_t>(t) * num_logit_cuts_ + static_cast<size_t>(a.row0 / c.rows_per_cut)] =
          first_largest(out, num, a.row0);
    }
  });
}

// All products in 6 bits first. The row group that looks best is multiplied as ever; then so are those
// that can still hold a larger logit, a handful. Products of a group have the bits that they have among all
// logits (matmul.h), so the result has as well.
void Runner::search_largest(const LogitsOp& op, const CoarseMatrix& coarse, const Acts& acts) {
  const PackedMatrix& head = weights_->matrix(op.head);
  const ProductCut c = cut_product(head.rows, acts.num_tokens, kRowUnit, team_.num_threads());
  num_logit_cuts_ = static_cast<size_t>(c.num_row_cuts);
  largest_.resize(static_cast<size_t>(acts.num_tokens) * num_logit_cuts_);
  ranges_.resize(largest_.size());
  std::array<float, kMostSearchedRows> norms;
  team_.run(acts.num_tokens, [&](int32_t t, int32_t) {
    const float* x = logit_hidden_ + int64_t{t} * plan_->hidden;
    norms[static_cast<size_t>(t)] = act_norm_bound(x, plan_->hidden);
    kernels_.quantize(x, 0, 0, plan_->hidden, searched_acts_[static_cast<size_t>(t)]);
  });
  const auto index_of = [&](int32_t t, const ProductArea& a) {
    return static_cast<size_t>(t) * num_logit_cuts_ + static_cast<size_t>(a.row0 / c.rows_per_cut);
  };
  team_.run(c.num_chunks(), [&](int32_t chunk, int32_t) {
    const ProductArea a = c.area(chunk);
    float* out = logits_ + static_cast<int64_t>(a.t0) * head.rows + a.row0;
    kernels_.matmul(coarse.codes, acts, a.row0, a.row1, a.t0, a.t1, out, head.rows);
    for (int32_t t = a.t0; t < a.t1; ++t, out += head.rows) {
      ranges_[index_of(t, a)] = largest_range(out, coarse.bounds + a.row0 / kRowGroup,
                                              (a.row1 - a.row0) / kRowGroup, norms[static_cast<size_t>(t)]);
    }
  });

  // The largest logit of a group of rows of the matrix.
  const auto largest_in = [&](int32_t t, int32_t row0) {
    float logits[kRowGroup];
    kernels_.matmul(head, searched_acts_[static_cast<size_t>(t)], row0, row0 + kRowGroup, 0, 1, logits,
                    kRowGroup);
    return first_largest(logits, kRowGroup, row0);
  };
  std::array<float, kMostSearchedRows> least;  // the largest logit is this one or larger
  for (int32_t t = 0; t < acts.num_tokens; ++t) {
    const LargestRange* of_cuts = &ranges_[static_cast<size_t>(t) * num_logit_cuts_];
    const LargestRange* best = std::max_element(
        of_cuts, of_cuts + num_logit_cuts_,
        [](const LargestRange& one, const LargestRange& other) { return one.lower < other.lower; });
    const auto row0 = static_cast<int32_t>(best - of_cuts) * c.rows_per_cut + best->group * kRowGroup;
    least[static_cast<size_t>(t)] = std::max(best->lower, largest_in(t, row0).value);
  }
  team_.run(c.num_chunks(), [&](int32_t chunk, int32_t) {
    const ProductArea a = c.area(chunk);
    for (int32_t t = a.t0; t < a.t1; ++t) {
      const auto row = static_cast<size_t>(t);
      LargestLogit& best = largest_[index_of(t, a)];
      best = {-std::numeric_limits<float>::infinity(), a.row0};
      if (ranges_[index_of(t, a)].upper < least[row]) continue;
      const float* products = logits_ + static_cast<int64_t>(t) * head.rows;
      for (int32_t n = a.row0; n < a.row1; n += kRowGroup) {
        if (!can_reach(products + n, coarse.bounds[n / kRowGroup], norms[row], least[row])) continue;
        const LargestLogit here = largest_in(t, n);
        if (here.value > best.value) best = here;
      }
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
      float chosen;
      if (takes_largest(slot.params, slot.history)) {
        const LargestLogit& largest = largest_of(static_cast<size_t>(index));  // logits may not be there
        take_token(largest.token, sampled);
        chosen = largest.value;
      } else {
        sample_row(logits, slot.params, slot.history, static_cast<uint64_t>(slot.history.num_output), scratch,
                   sampled);
        chosen = logits[static_cast<size_t>(sampled.token)];
      }
      if (clean_logit(chosen) == -std::numeric_limits<float>::infinity()) sampled.token = kNoToken;
    } else {
      score_row(logits, step_->scores[i].token, step_->scores[i].num_top, scratch, result_->scores[i]);
      if (capture_ != nullptr) std::memcpy(capture_ + i * vocab, logits.data(), vocab * sizeof(float));
    }
  });
}

}  // namespace plait
