#include "scheduler/fair_share.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace plait {

namespace {

// Who wants more than its share gets so much of it: the others also waited for the steps that were in flight
// when they came.
constexpr double kCrowdShare = 0.6;
// Steps.
constexpr int64_t kMoveInterval = 4;
constexpr int64_t kLastingSteps = 4;

bool is_decoding(const Sequence& seq) {
  const int32_t length = seq.length() + seq.num_pending;
  return seq.state == SequenceState::kRunning && seq.num_scheduled >= seq.num_prompt &&
         length - seq.num_scheduled <= 1 && length < seq.max_len;
}

PromptNeed need_of(const Sequence& seq) { return {seq.length() - seq.num_scheduled, seq.num_scheduled}; }

}  // namespace

FairShare::FairShare(int32_t max_batch_tokens, const PrefillPacer& pacer)
    : max_batch_tokens_(max_batch_tokens), pacer_(pacer) {}

void FairShare::choose_decodes(std::span<Sequence* const> running, int64_t step_id) {
  choose_all(running);
  if (!pacer_.costs().knows_decodes()) return;
  for (Sequence* seq : running) {
    if (is_decoding(*seq)) {
      Part& part = part_of(*seq);
      part.decodes.push_back(seq);
      part.decode_positions += seq->length() + seq->num_pending;
    } else if (seq->state == SequenceState::kRunning && seq->length() > seq->num_scheduled) {
      part_of(*seq).prompts.push_back(need_of(*seq));
    }
  }
  price(max_batch_tokens_);
  if (num_parts_ > 1) {
    allot(longest_step_s() - pacer_.costs().fixed_s());
  } else if (num_parts_ == 1 && is_lasting(step_id)) {
    parts_[0].allotted_s = lasting_s_ - pacer_.costs().fixed_s();
    parts_[0].is_cut = parts_[0].decodes_s + parts_[0].prompts_s > parts_[0].allotted_s;
  }
  for (Part& part : parts()) {
    if (!part.is_cut) continue;
    pass_over(part);
    if (num_parts_ == 1) continue;
    lasting_s_ = longest_step_s();
    lasting_until_step_id_ = step_id + kLastingSteps;
  }
  clear();
}

void FairShare::choose_all(std::span<Sequence* const> running) {
  for (Sequence* seq : running) seq->is_passed_over = false;
  has_passed_over_ = false;
}

std::vector<int32_t> FairShare::share_prompts(std::span<Sequence* const> prompts,
                                              std::span<const PlannedStep::Row> decodes, int64_t step_id) {
  std::vector<PromptNeed> needs;
  int64_t decode_positions = 0;
  for (const PlannedStep::Row& row : decodes) {
    Part& part = part_of(*row.seq);
    part.decodes.push_back(row.seq);
    part.decode_positions += row.end;
    decode_positions += row.end;
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    Part& part = part_of(*prompts[i]);
    needs.push_back(need_of(*prompts[i]));
    part.prompts.push_back(needs.back());
    part.prompt_idx.push_back(i);
  }
  const auto num_decodes = static_cast<int32_t>(decodes.size());
  const int32_t room = max_batch_tokens_ - num_decodes;
  std::vector<int32_t> shares;
  // One at a time: the counts lag behind by the steps in flight.
  if (num_parts_ == 1 && pacer_.should_probe(num_decodes) &&
      step_id >= last_probe_step_id_ + kProbeInterval) {
    last_probe_step_id_ = step_id;
    shares.assign(prompts.size(), 0);
  } else if (!try_share_by_tenant(room, step_id, prompts.size(), shares)) {
    double allowance_s = pacer_.allowance_s(num_decodes, decode_positions, needs);
    if (num_parts_ == 1 && is_lasting(step_id) && pacer_.costs().knows_prefills()) {
      price(room);
      const double left_s = lasting_s_ - pacer_.costs().fixed_s() - parts_[0].decodes_s;
      allowance_s = allowance_s < 0.0 ? std::max(left_s, 0.0) : std::clamp(left_s, 0.0, allowance_s);
    }
    shares = pacer_.share(needs, room, allowance_s, kLeastPromptTokens);
  }
  clear();
  return shares;
}

// False: one tenant only, or there is time for all that they want: the pace is what counts.
bool FairShare::try_share_by_tenant(int32_t room, int64_t step_id, size_t num_prompts,
                                    std::vector<int32_t>& shares) {
  if (num_parts_ < 2 || !pacer_.costs().knows_prefills()) return false;
  price(room);
  double wanted_s = pacer_.costs().fixed_s();
  for (const Part& part : parts()) wanted_s += part.decodes_s + part.prompts_s;
  const double longest_s = longest_step_s();
  if (wanted_s <= longest_s) return false;
  allot(longest_s - pacer_.costs().fixed_s());
  shares.assign(num_prompts, 0);
  for (const Part& part : parts()) {  // who wants least is first
    // Who has decodes in the step moves already; its prompts do every now and then, whatever the time says.
    const bool must_move = part.decodes.empty() || step_id % kMoveInterval == 0;
    const std::vector<int32_t> own =
        pacer_.share(part.prompts, room, std::max(part.allotted_s - part.decodes_s, 0.0),
                     must_move ? kLeastPromptTokens : 0);
    for (size_t k = 0; k < own.size(); ++k) shares[part.prompt_idx[k]] = own[k];
    room -= std::accumulate(own.begin(), own.end(), 0);
  }
  return true;
}

FairShare::Part& FairShare::part_of(const Sequence& seq) {
  Tenant& tenant = *seq.request->tenant;
  if (tenant.part_idx < 0) {
    tenant.part_idx = static_cast<int32_t>(num_parts_);
    if (num_parts_ == parts_.size()) parts_.emplace_back();
    parts_[num_parts_++].tenant = &tenant;
  }
  return parts_[static_cast<size_t>(tenant.part_idx)];
}

void FairShare::clear() {
  for (Part& part : parts()) {
    part.tenant->part_idx = -1;
    part.tenant = nullptr;
    part.decodes.clear();
    part.prompts.clear();
    part.prompt_idx.clear();
    part.decode_positions = 0;
    part.is_cut = false;
  }
  num_parts_ = 0;
}

// What each wants. `room`: prompt tokens that a step takes at most.
void FairShare::price(int32_t room) {
  const StepCostModel& costs = pacer_.costs();
  for (Part& part : parts()) {
    const double step_s = costs.decode_s(static_cast<int32_t>(part.decodes.size()), part.decode_positions);
    part.decodes_s = std::max(step_s - costs.fixed_s(), 0.0);
    part.prompts_s = pacer_.cost_s(part.prompts, room);
  }
}

double FairShare::longest_step_s() const {
  double sum_of_weights = 0.0;
  for (const Part& part : parts()) sum_of_weights += part.tenant->weight;
  double longest_s = std::numeric_limits<double>::infinity();
  for (const Part& part : parts()) {
    const double alone_s = pacer_.costs().fixed_s() + part.decodes_s + part.prompts_s;
    longest_s = std::min(longest_s, alone_s * sum_of_weights / part.tenant->weight);
  }
  return longest_s;
}

// Divides `total_s` by weight; what one does not want goes to the others. Leaves who wants least first.
void FairShare::allot(double total_s) {
  const auto by_weight = [](const Part& part) {
    return (part.decodes_s + part.prompts_s) / part.tenant->weight;
  };
  const std::span<Part> all = parts();
  std::stable_sort(all.begin(), all.end(),
                   [&](const Part& a, const Part& b) { return by_weight(a) < by_weight(b); });
  double weights = 0.0;
  for (const Part& part : all) weights += part.tenant->weight;
  for (Part& part : all) {
    const double wanted_s = part.decodes_s + part.prompts_s;
    const double fair_s = total_s * part.tenant->weight / weights;
    part.is_cut = wanted_s > fair_s * (1.0 + 1e-9);
    part.allotted_s = part.is_cut ? fair_s * kCrowdShare : wanted_s;
    total_s -= std::min(wanted_s, fair_s);
    weights -= part.tenant->weight;
  }
}

// Those that waited longest decode.
void FairShare::pass_over(Part& part) {
  const auto count = static_cast<int32_t>(part.decodes.size());
  if (count < 2) return;
  // What its prompts leave, but they leave as much as the pace says.
  const double own_s = std::max(part.allotted_s - part.prompts_s, part.allotted_s / kMixedStepRatio);
  const double kept = std::min(own_s / part.decodes_s, 1.0) * count;
  const int32_t num_kept = std::clamp(static_cast<int32_t>(kept), 1, count);
  const auto end = part.decodes.begin() + num_kept;
  std::nth_element(
      part.decodes.begin(), end - 1, part.decodes.end(), [](const Sequence* a, const Sequence* b) {
        return a->last_step_id != b->last_step_id ? a->last_step_id < b->last_step_id : a->rank < b->rank;
      });
  for (auto it = end; it != part.decodes.end(); ++it) (*it)->is_passed_over = true;
  has_passed_over_ = has_passed_over_ || num_kept < count;
}

}  // namespace plait
