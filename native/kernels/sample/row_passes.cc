#include "kernels/sample/row_passes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

namespace plait {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr size_t kMaxBlock = 64;  // entries that select_best skips together

using F4 = float __attribute__((vector_size(16)));
using U4 = uint32_t __attribute__((vector_size(16)));

inline F4 load4(const float* p) {
  F4 a;
  std::memcpy(&a, p, sizeof(a));
  return a;
}
// Comparisons with NaN are false, so NaN in `a` is passed over.
inline F4 larger(F4 a, F4 best) { return a > best ? a : best; }

// The plain maximum, without the cleaning of +infinity.
float block_max(const float* x, size_t num) {
  float best = -kInf;
  size_t i = 0;
  if (num >= 16) {
    F4 m0 = {best, best, best, best};
    F4 m1 = m0;
    F4 m2 = m0;
    F4 m3 = m0;
    for (; i + 16 <= num; i += 16) {
      m0 = larger(load4(x + i), m0);
      m1 = larger(load4(x + i + 4), m1);
      m2 = larger(load4(x + i + 8), m2);
      m3 = larger(load4(x + i + 12), m3);
    }
    m0 = larger(larger(m0, m1), larger(m2, m3));
    for (int lane = 0; lane < 4; ++lane) best = m0[lane] > best ? m0[lane] : best;
  }
  for (; i < num; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// The polynomial of lanes/exp-inl.h without fusing: a call per std::fma would cost more than the rest.
inline F4 exp_weight(F4 x) {
  const F4 shifted = x * 0x1.715476p+0F + 0x1.8p23F;
  const F4 n = shifted - 0x1.8p23F;
  const F4 r = (x - n * 0.693359375F) + n * 0x1.bd0106p-13F;
  F4 p = 0x1.6a2352p-10F * r + 0x1.123a6cp-7F;
  p = p * r + 0x1.5558f4p-5F;
  p = p * r + 0x1.555490p-3F;
  p = p * r + 0x1.fffffcp-2F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const F4 power = std::bit_cast<F4>((std::bit_cast<U4>(shifted) << 23) + 0x3F800000U);
  const F4 zero = {};
  return x >= -87.33F ? p * power : zero;
}

// out[i] = exp((x[i] - max) * factor), x bounded first.
void exp_block(const float* x, size_t num, float max, float factor, float* out) {
  const F4 largest = {kLargest, kLargest, kLargest, kLargest};
  size_t i = 0;
  for (; i + 4 <= num; i += 4) {
    const F4 value = load4(x + i);
    const F4 weight = exp_weight(((value > largest ? largest : value) - max) * factor);
    std::memcpy(out + i, &weight, sizeof(weight));
  }
  if (i == num) return;
  float rest[4] = {-kInf, -kInf, -kInf, -kInf};
  std::memcpy(rest, x + i, (num - i) * sizeof(float));
  exp_block(rest, 4, max, factor, rest);
  std::memcpy(out + i, rest, (num - i) * sizeof(float));
}

double block_sum(const float* weights, size_t num) {
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= num; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += static_cast<double>(weights[i + lane]);
  }
  for (size_t lane = 0; i + lane < num; ++lane) lanes[lane] += static_cast<double>(weights[i + lane]);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace

float clean_logit(float x) {
  if (x != x) return -kInf;
  return x > kLargest ? kLargest : x;
}

void clean_row(const float* x, size_t num, float* out) {
  for (size_t i = 0; i < num; ++i) {
    const float bounded = x[i] > kLargest ? kLargest : x[i];
    out[i] = x[i] != x[i] ? -kInf : bounded;
  }
}

float row_max(const float* x, size_t num) { return clean_logit(block_max(x, num)); }

size_t row_argmax(const float* x, size_t num) {
  float best = -kInf;
  size_t best_start = 0;
  for (size_t start = 0; start < num; start += kPassBlock) {
    const float m = block_max(x + start, std::min(kPassBlock, num - start));
    if (m > best) {
      best = m;
      best_start = start;
    }
  }
  if (best == -kInf) return 0;
  size_t i = best_start;
  while (x[i] != best) ++i;
  return i;
}

size_t num_better(const float* x, size_t num, size_t index) {
  const float mine = clean_logit(x[index]);
  size_t count = 0;
  if (mine == -kInf) {  // NaN is as good: the comparisons below would not count it
    for (size_t i = 0; i < num; ++i) count += clean_logit(x[i]) > mine || i < index ? 1 : 0;
    return count;
  }
  uint32_t before = 0;
  uint32_t after = 0;
  for (size_t i = 0; i < index; ++i) before += x[i] >= mine ? 1U : 0U;
  if (mine < kLargest) {  // nothing is better than the largest: +infinity is its equal
    for (size_t i = index + 1; i < num; ++i) after += x[i] > mine ? 1U : 0U;
  }
  return before + after;
}

void exp_weights(const float* x, size_t num, float max, float factor, float* out) {
  exp_block(x, num, max, factor, out);
}

double sum_of_exp(const float* x, size_t num, float max) {
  float weights[kPassBlock];
  double sum = 0;
  for (size_t start = 0; start < num; start += kPassBlock) {
    const size_t n = std::min(kPassBlock, num - start);
    exp_block(x + start, n, max, 1.0F, weights);
    sum += block_sum(weights, n);
  }
  return sum;
}

double sum_weights(const float* weights, size_t num) {
  double sum = 0;
  for (size_t start = 0; start < num; start += kPassBlock) {
    sum += block_sum(weights + start, std::min(kPassBlock, num - start));
  }
  return sum;
}

size_t draw_index(const float* weights, size_t num, double u) {
  const double target = u * sum_weights(weights, num);
  double sum = 0;
  for (size_t start = 0; start < num; start += kPassBlock) {
    const size_t end = std::min(start + kPassBlock, num);
    const double through = sum + block_sum(weights + start, end - start);
    if (through > target) {
      size_t last = end;
      for (size_t i = start; i < end; ++i) {
        if (!(weights[i] > 0.0F)) continue;
        last = i;
        sum += static_cast<double>(weights[i]);
        if (sum > target) break;
      }
      return last;  // where the two ways to add the block differ by rounding: its last one
    }
    sum = through;
  }
  size_t last = num - 1;  // u * sum rounded up to sum
  while (last > 0 && !(weights[last] > 0.0F)) --last;
  return last;
}

double log_of(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int32_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);  // ln m = 2 (s + s^3/3 + s^5/5 + ...), |s| < 0.172
  const double z = s * s;
  double series = 0;
  for (int odd = 17; odd >= 1; odd -= 2) series = series * z + 1.0 / odd;
  return exponent * 0.6931471805599453 + 2.0 * s * series;
}

void select_best(const float* x, size_t num, size_t k, std::vector<float>& spare,
                 std::vector<int32_t>& best) {
  k = std::min(k, num);
  best.clear();
  if (k == 0) return;
  const auto is_better = [x](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  const size_t num_blocks = (num + kMaxBlock - 1) / kMaxBlock;
  if (k >= num_blocks / 2) {
    best.resize(num);
    std::iota(best.begin(), best.end(), 0);
  } else {
    // At least k entries, one in each of k blocks, reach the k-th largest block maximum.
    if (spare.size() < 2 * num_blocks) spare.resize(2 * num_blocks);
    float* maxima = spare.data();
    float* ranked = maxima + num_blocks;
    for (size_t b = 0; b < num_blocks; ++b) {
      maxima[b] = block_max(x + b * kMaxBlock, std::min(kMaxBlock, num - b * kMaxBlock));
    }
    std::copy(maxima, maxima + num_blocks, ranked);
    std::nth_element(ranked, ranked + (k - 1), ranked + num_blocks, std::greater<>());
    const float least = ranked[k - 1];
    for (size_t b = 0; b < num_blocks; ++b) {
      if (maxima[b] < least) continue;
      const size_t end = std::min(num, (b + 1) * kMaxBlock);
      for (size_t i = b * kMaxBlock; i < end; ++i) {
        if (x[i] >= least) best.push_back(static_cast<int32_t>(i));
      }
    }
  }
  const auto kept = best.begin() + static_cast<int64_t>(k);
  if (k < best.size()) std::nth_element(best.begin(), kept, best.end(), is_better);
  best.resize(k);
  std::sort(best.begin(), best.end(), is_better);
}

}  // namespace plait
