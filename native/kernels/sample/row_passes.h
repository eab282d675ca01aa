// Passes over a row of logits, in vectors that every CPU has. Every sum has a fixed
// order, so a result depends on the row alone. NaN counts as -infinity, +infinity as the largest float.
// Knows: floats. Must not know: sampling parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace plait {

inline constexpr size_t kPassBlock = 1024;  // entries that are summed, or searched, together

// -infinity for NaN, the largest float for +infinity.
float clean_logit(float x);
void clean_row(const float* x, size_t num, float* out);

// The largest entry, cleaned; -infinity when there is none.
float row_max(const float* x, size_t num);
// The lowest index of the largest entry; 0 when all are -infinity.
size_t row_argmax(const float* x, size_t num);

// How many entries rank before entry `index`: larger, or equal with a lower index.
size_t num_better(const float* x, size_t num, size_t index);

// out[i] = exp((x[i] - max) * factor), 0 below the least normal float. Needs x[i] <= max, finite max and
// factor >= 0. Plain multiplies and adds, within 2 ulp.
void exp_weights(const float* x, size_t num, float max, float factor, float* out);
// The sum of exp(x[i] - max).
double sum_of_exp(const float* x, size_t num, float max);

// The sum of non-negative weights: 8 lanes within a block of kPassBlock, blocks in rising order.
double sum_weights(const float* weights, size_t num);
// The index at which the running sum of the weights, in rising index, first exceeds u * sum, 0 <= u < 1.
// Never one of weight 0; needs a positive sum.
size_t draw_index(const float* weights, size_t num, double u);

// Natural logarithm of a finite x >= 1, to 1e-13 of max(1, the result): plain operations only.
double log_of(double x);

// The k best indices of a clean row, by falling value, ties by rising index. `spare` is grown once.
void select_best(const float* x, size_t num, size_t k, std::vector<float>& spare, std::vector<int32_t>& best);

}  // namespace plait
