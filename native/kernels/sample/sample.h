// Sampling of one token from one row of logits. Knows: logits, parameters, a counter. Must not know: text,
// sequences, threads. One call is single-threaded; calls for different rows may run at the same time.
//
// INVARIANT: the token depends only on (logits, params, history counts, seed, counter).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace plait {

struct SampleParams {
  float temperature = 1.0F;         // 0: greedy (lowest id wins a tie)
  float top_p = 1.0F;               // (0, 1]
  int32_t top_k = 0;                // 0: all
  float min_p = 0.0F;               // [0, 1]
  float repetition_penalty = 1.0F;  // > 0; over prompt and output tokens (CTRL, arXiv:1909.05858)
  float presence_penalty = 0.0F;    // over output tokens, OpenAI's definition
  float frequency_penalty = 0.0F;   // over output tokens, OpenAI's definition
  uint64_t seed = 0;
  int32_t num_logprobs = -1;  // -1: none; 0: the chosen token only; k: the k best as well
  int32_t min_tokens = 0;     // stop_token_ids are excluded before this many output tokens
  std::vector<int32_t> stop_token_ids{};
  std::vector<std::pair<int32_t, float>> logit_bias{};
};

// What the penalties need: counts by token id, kept by the owner of the sequence.
struct TokenHistory {
  std::vector<int32_t> prompt_ids;                         // sorted, unique
  std::vector<std::pair<int32_t, int32_t>> output_counts;  // (id, count), sorted by id
  int32_t num_output = 0;

  void start(std::span<const int32_t> prompt, std::span<const int32_t> output);
  void append(int32_t token);
};

// In place of a token: no logit of the row was a number.
inline constexpr int32_t kNoToken = -1;

struct Sampled {
  int32_t token = 0;
  float logprob = 0;  // log softmax of the raw logits (no bias, penalties, temperature); 0 if not asked
  std::vector<std::pair<int32_t, float>> top;  // the num_logprobs best by raw logprob, best first, ties by id
  int32_t rank = 0;  // of the token among the raw logprobs, 1 = best, ties by id; 0 if not asked
};

// Philox4x32-10 (Salmon et al., SC 2011): 4 random words for (key = seed, counter).
void philox4x32(uint64_t seed, uint64_t counter, uint32_t out[4]);

// Grown on the first calls, then reused without allocation.
struct SampleScratch {
  std::vector<float> work;     // adjusted logits, then weights
  std::vector<float> spare;    // block maxima of a selection
  std::vector<int32_t> order;  // candidates
};

// Whether sample_row() would give the first of the largest logits and nothing else, so that who computes the
// row can find it on the way: take_token() then stands for the call.
bool takes_largest(const SampleParams& params, const TokenHistory& history);
void take_token(int32_t token, Sampled& out);

// `counter` is the number of tokens that the sequence has produced so far. `logits` ([vocab]) is left as it
// is. The order: raw logprobs; logit_bias; penalties; min_tokens; temperature; top_k; top_p; min_p; draw.
// Candidates rank by falling logit, ties by rising id. top_p keeps the least set of best candidates whose
// share of what top_k left reaches it; min_p keeps those whose probability is at least min_p times the best
// one's. The draw takes 53 bits from philox4x32(seed, counter) and walks the kept ids in rising order. A NaN
// logit counts as -infinity, a logit of +infinity as the largest float; if nothing is left, the token is 0.
void sample_row(std::span<const float> logits, const SampleParams& params, const TokenHistory& history,
                uint64_t counter, SampleScratch& scratch, Sampled& out);

// Logprob of `token` and the `num_top` best of a row (for prompt logprobs).
void score_row(std::span<const float> logits, int32_t token, int32_t num_top, SampleScratch& scratch,
               Sampled& out);

}  // namespace plait
