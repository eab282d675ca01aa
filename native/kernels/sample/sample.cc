// The order of sampling, step by step. Rank: by falling (adjusted) logit, ties by rising id.
#include "kernels/sample/sample.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/sample/philox.h"
#include "kernels/sample/row_passes.h"

namespace plait {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr size_t kBins = 2048;
constexpr int kBinShift = 20;  // 11 bits of the distance: its exponent and 3 bits of mantissa
constexpr size_t kSortAtMost = 4096;
constexpr size_t kFewCandidates = 128;

bool is_greedy(const SampleParams& params) { return !(params.temperature > 0.0F); }

bool changes_logits(const SampleParams& params, const TokenHistory& history) {
  return !params.logit_bias.empty() || params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F ||
         params.frequency_penalty != 0.0F ||
         (history.num_output < params.min_tokens && !params.stop_token_ids.empty());
}

// Ids outside the row, which no valid request has, are passed over.
bool is_in(std::span<const float> row, int32_t id) { return id >= 0 && static_cast<size_t>(id) < row.size(); }

void repeat_penalty(std::span<float> x, int32_t id, float penalty) {
  if (!is_in(x, id)) return;
  float& logit = x[static_cast<size_t>(id)];
  logit = clean_logit(logit > 0.0F ? logit / penalty : logit * penalty);
}

// Bias; repetition penalty, once for each id of prompt or output; frequency and presence; stop ids.
void adjust_logits(std::span<float> x, const SampleParams& params, const TokenHistory& history) {
  for (const auto& [id, bias] : params.logit_bias) {
    if (is_in(x, id)) x[static_cast<size_t>(id)] = clean_logit(x[static_cast<size_t>(id)] + bias);
  }
  if (params.repetition_penalty != 1.0F) {
    for (const int32_t id : history.prompt_ids) repeat_penalty(x, id, params.repetition_penalty);
    for (const auto& [id, count] : history.output_counts) {
      if (!std::binary_search(history.prompt_ids.begin(), history.prompt_ids.end(), id)) {
        repeat_penalty(x, id, params.repetition_penalty);
      }
    }
  }
  if (params.presence_penalty != 0.0F || params.frequency_penalty != 0.0F) {
    for (const auto& [id, count] : history.output_counts) {
      if (!is_in(x, id)) continue;
      float& logit = x[static_cast<size_t>(id)];
      const float cost = static_cast<float>(count) * params.frequency_penalty + params.presence_penalty;
      logit = clean_logit(logit - cost);
    }
  }
  if (history.num_output < params.min_tokens) {
    for (const int32_t id : params.stop_token_ids) {
      if (is_in(x, id)) x[static_cast<size_t>(id)] = -kInf;
    }
  }
}

double uniform(uint64_t seed, uint64_t counter) {
  uint32_t words[4];
  philox4x32(seed, counter, words);
  const uint64_t bits = (uint64_t{words[0] >> 5} << 26) | (words[1] >> 6);
  return static_cast<double>(bits) * 0x1p-53;
}

// How far an entry lies below the best, as bits that order like the distance.
uint32_t distance_bits(float max, float x) { return std::bit_cast<uint32_t>(max - x); }

struct BinHit {
  size_t bin = kBins;  // kBins: the mass is never reached
  double before = 0;   // mass of the bins before it
};

BinHit find_bin(const double (&sums)[kBins], double before, double mass) {
  for (size_t bin = 0; bin < kBins; ++bin) {
    if (before + sums[bin] >= mass) return {bin, before};
    before += sums[bin];
  }
  return {};
}

// Sets to 0 all weights but those of the least set of best entries whose sum reaches `mass`. Finds the entry
// at which it is reached by bins of the distance, and sorts only the bin in which that lies.
void keep_top_mass(std::span<const float> x, float max, double mass, float* weights,
                   std::vector<int32_t>& order) {
  double sums[kBins] = {};
  for (size_t i = 0; i < x.size(); ++i)
    sums[distance_bits(max, x[i]) >> kBinShift] += static_cast<double>(weights[i]);
  BinHit hit = find_bin(sums, 0.0, mass);
  if (hit.bin == kBins) return;
  order.clear();
  for (size_t i = 0; i < x.size(); ++i) {
    if (distance_bits(max, x[i]) >> kBinShift == hit.bin) order.push_back(static_cast<int32_t>(i));
  }
  const auto at = [&](int32_t id) { return distance_bits(max, x[static_cast<size_t>(id)]); };
  const auto fine_bin = [&](int32_t id) { return (at(id) >> (kBinShift - 11)) % kBins; };
  if (order.size() > kSortAtMost) {
    std::fill(std::begin(sums), std::end(sums), 0.0);
    for (const int32_t id : order) sums[fine_bin(id)] += static_cast<double>(weights[id]);
    const BinHit fine = find_bin(sums, hit.before, mass);
    if (fine.bin < kBins) {
      hit.before = fine.before;
      std::erase_if(order, [&](int32_t id) { return fine_bin(id) != fine.bin; });
    }
  }
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return at(a) < at(b) || (at(a) == at(b) && a < b); });
  double sum = hit.before;
  int32_t last = order.back();
  for (const int32_t id : order) {
    sum += static_cast<double>(weights[id]);
    if (sum >= mass) {
      last = id;
      break;
    }
  }
  const uint32_t cut = at(last);
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t distance = distance_bits(max, x[i]);
    const bool is_kept = distance < cut || (distance == cut && i <= static_cast<size_t>(last));
    weights[i] = is_kept ? weights[i] : 0.0F;
  }
}

void keep_min_p(float min_p, float* weights, size_t num) {
  const float least = std::min(min_p, 1.0F);  // the best entry has weight 1
  for (size_t i = 0; i < num; ++i) weights[i] = weights[i] >= least ? weights[i] : 0.0F;
}

// Cuts a ranked list after the entry at which its sum reaches `mass`; false, and the whole list, when none
// does.
bool cut_at_mass(std::vector<int32_t>& ranked, double mass, const float* weights_by_rank) {
  double sum = 0;
  for (size_t i = 0; i < ranked.size(); ++i) {
    sum += static_cast<double>(weights_by_rank[i]);
    if (sum < mass) continue;
    ranked.resize(i + 1);
    return true;
  }
  return false;
}

// One row on its way through the filters.
struct Draw {
  std::span<const float> x;
  const SampleParams& params;
  SampleScratch& scratch;
  float* weights;  // [vocabulary]
  float max = 0;
  float factor = 1;  // 1 / temperature
  double u = 0;

  void weigh(const std::vector<int32_t>& ids, float* out) const {
    for (size_t i = 0; i < ids.size(); ++i) out[i] = x[static_cast<size_t>(ids[i])];
    exp_weights(out, ids.size(), max, factor, out);
  }

  // Among the few ids that top_k and top_p kept.
  size_t of_kept(std::vector<int32_t>& ids) const {
    std::sort(ids.begin(), ids.end());
    weigh(ids, weights);
    if (params.min_p > 0.0F) keep_min_p(params.min_p, weights, ids.size());
    return static_cast<size_t>(ids[draw_index(weights, ids.size(), u)]);
  }

  size_t of_top_k() const {
    std::vector<int32_t>& ids = scratch.order;
    select_best(x.data(), x.size(), static_cast<size_t>(params.top_k), scratch.spare, ids);
    if (params.top_p < 1.0F) {
      weigh(ids, weights);
      cut_at_mass(ids, static_cast<double>(params.top_p) * sum_weights(weights, ids.size()), weights);
    }
    return of_kept(ids);
  }

  size_t of_all() const {
    exp_weights(x.data(), x.size(), max, factor, weights);
    if (params.top_p < 1.0F) {
      const double mass = static_cast<double>(params.top_p) * sum_weights(weights, x.size());
      // Most rows are peaked: a few candidates hold the mass.
      std::vector<int32_t>& ids = scratch.order;
      select_best(x.data(), x.size(), kFewCandidates, scratch.spare, ids);
      float few[kFewCandidates];
      weigh(ids, few);
      if (cut_at_mass(ids, mass, few)) return of_kept(ids);
      keep_top_mass(x, max, mass, weights, ids);
    }
    if (params.min_p > 0.0F) keep_min_p(params.min_p, weights, x.size());
    return draw_index(weights, x.size(), u);
  }
};

// Temperature, top_k, top_p, min_p, draw. The draw walks the kept ids in rising order.
size_t draw_token(std::span<const float> x, const SampleParams& params, double u, SampleScratch& scratch,
                  float* weights) {
  const float max = row_max(x.data(), x.size());
  if (max == -kInf) return 0;
  const float factor = std::min(1.0F / params.temperature, std::numeric_limits<float>::max());
  const Draw draw{x, params, scratch, weights, max, factor, u};
  const bool has_top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < x.size();
  return has_top_k ? draw.of_top_k() : draw.of_all();
}

size_t choose_token(std::span<const float> logits, const SampleParams& params, const TokenHistory& history,
                    uint64_t counter, SampleScratch& scratch) {
  const bool is_changed = changes_logits(params, history);
  if (is_greedy(params) && !is_changed) return row_argmax(logits.data(), logits.size());
  if (scratch.work.size() < 2 * logits.size()) scratch.work.resize(2 * logits.size());
  const std::span<float> x(scratch.work.data(), logits.size());
  clean_row(logits.data(), logits.size(), x.data());
  if (is_changed) adjust_logits(x, params, history);
  if (is_greedy(params)) return row_argmax(x.data(), x.size());
  return draw_token(x, params, uniform(params.seed, counter), scratch, scratch.work.data() + x.size());
}

}  // namespace

void philox4x32(uint64_t seed, uint64_t counter, uint32_t out[4]) {
  const auto words =
      philox4x32_10({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  std::copy(words.begin(), words.end(), out);
}

void score_row(std::span<const float> logits, int32_t token, int32_t num_top, SampleScratch& scratch,
               Sampled& out) {
  const float max = row_max(logits.data(), logits.size());
  const double log_sum = max == -kInf ? 0.0 : log_of(sum_of_exp(logits.data(), logits.size(), max));
  const auto logprob = [&](float logit) {
    const float clean = clean_logit(logit);
    return clean == -kInf
               ? -kInf
               : static_cast<float>((static_cast<double>(clean) - static_cast<double>(max)) - log_sum);
  };
  const float chosen = clean_logit(logits[static_cast<size_t>(token)]);
  out.token = token;
  out.logprob = logprob(chosen);
  out.rank = 1 + static_cast<int32_t>(num_better(logits.data(), logits.size(), static_cast<size_t>(token)));
  out.top.clear();
  if (num_top <= 0) return;
  if (scratch.work.size() < logits.size()) scratch.work.resize(logits.size());
  clean_row(logits.data(), logits.size(), scratch.work.data());
  select_best(scratch.work.data(), logits.size(), static_cast<size_t>(num_top), scratch.spare, scratch.order);
  for (const int32_t id : scratch.order) out.top.emplace_back(id, logprob(logits[static_cast<size_t>(id)]));
}

bool takes_largest(const SampleParams& params, const TokenHistory& history) {
  return is_greedy(params) && !changes_logits(params, history) && params.num_logprobs < 0;
}

void take_token(int32_t token, Sampled& out) {
  out.token = token;
  out.logprob = 0.0F;
  out.rank = 0;
  out.top.clear();
}

void sample_row(std::span<const float> logits, const SampleParams& params, const TokenHistory& history,
                uint64_t counter, SampleScratch& scratch, Sampled& out) {
  const auto token = static_cast<int32_t>(choose_token(logits, params, history, counter, scratch));
  if (params.num_logprobs >= 0) return score_row(logits, token, params.num_logprobs, scratch, out);
  take_token(token, out);
}

}  // namespace plait
