#include "scheduler/step_cost.h"

#include <algorithm>
#include <cmath>

namespace plait {

namespace {

// The weight of a lesson halves in 35 lessons.
constexpr double kForgetting = 0.98;
// A lesson this many typical errors off counts in full, one further off in proportion less.
constexpr double kTolerance = 3.0;
constexpr double kErrorSmoothing = 0.1;
// No clock and no machine is better: the typical error is this share of the time at least.
constexpr double kLeastError = 0.01;
// Keeps the fit solvable while lessons are alike; small against one lesson.
constexpr double kRidge = 1e-4;
// Units that make the features of a usual step about 1.
constexpr double kTokenUnit = 32.0;
constexpr double kPositionUnit = 16384.0;

// `fixed` 0: a line through the origin.
CostLine::Features features_of(double fixed, int64_t num_tokens, int64_t positions) {
  return {fixed, static_cast<double>(num_tokens) / kTokenUnit,
          static_cast<double>(positions) / kPositionUnit};
}

// Of decodes; prompt tokens are only what is added to a step. A fixed cost of theirs would be a guess as long
// as slices are alike, and whoever takes a guess for knowledge lets a slice of any size into a step.
CostLine::Features decode_features(int32_t num_tokens, int64_t positions) {
  return features_of(1.0, num_tokens, positions);
}
CostLine::Features prefill_features(int64_t num_tokens, int64_t positions) {
  return features_of(0.0, num_tokens, positions);
}

// Solves a symmetric positive definite system in the unknowns that `is_used`; the others are 0.
CostLine::Features solve_used(std::array<CostLine::Features, 3> a, CostLine::Features b,
                              const std::array<bool, 3>& is_used) {
  for (size_t i = 0; i < 3; ++i) {
    if (is_used[i]) continue;
    for (size_t j = 0; j < 3; ++j) a[i][j] = a[j][i] = 0.0;
    a[i][i] = 1.0;
    b[i] = 0.0;
  }
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = i + 1; j < 3; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (size_t k = i; k < 3; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  }
  CostLine::Features x{};
  for (size_t i = 3; i-- > 0;) {
    double rest = b[i];
    for (size_t k = i + 1; k < 3; ++k) rest -= a[i][k] * x[k];
    x[i] = rest / a[i][i];
  }
  return x;
}

}  // namespace

double CostLine::predict(const Features& features) const {
  double seconds = 0.0;
  for (size_t i = 0; i < 3; ++i) seconds += coefficients_[i] * features[i];
  return seconds;
}

void CostLine::learn(const Features& of_step, double of_step_s) {
  // Per unit of work: in seconds, one step of 512 prompt tokens would outweigh hundreds of small ones.
  const double size = of_step[0] + of_step[1] + of_step[2];
  const Features features = {of_step[0] / size, of_step[1] / size, of_step[2] / size};
  const double seconds = of_step_s / size;
  double weight = 1.0;
  if (num_lessons_ > 0) {
    const double error_s = std::abs(seconds - predict(features));
    if (error_s > kTolerance * typical_error_s_ && num_lessons_ > 3) {
      weight = kTolerance * typical_error_s_ / error_s;
    }
    // An outlier raises it by a fifth at most: a few stay outliers, a change of the machine gets through.
    typical_error_s_ +=
        kErrorSmoothing * (std::min(error_s, kTolerance * typical_error_s_) - typical_error_s_);
    typical_error_s_ = std::max(typical_error_s_, kLeastError * seconds);
  } else {
    typical_error_s_ = 0.1 * seconds;
  }
  ++num_lessons_;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      squares_[i][j] = kForgetting * squares_[i][j] + weight * features[i] * features[j];
    }
    products_[i] = kForgetting * products_[i] + weight * features[i] * seconds;
  }
  solve();
}

// Least squares without negative costs: an unknown that would get one is left out.
void CostLine::solve() {
  std::array<Features, 3> a = squares_;
  for (size_t i = 0; i < 3; ++i) a[i][i] += kRidge;
  std::array<bool, 3> is_used = {true, true, true};
  for (int round = 0; round < 3; ++round) {
    coefficients_ = solve_used(a, products_, is_used);
    const auto least = std::min_element(coefficients_.begin(), coefficients_.end());
    if (*least >= 0.0) return;
    is_used[static_cast<size_t>(least - coefficients_.begin())] = false;
    *least = 0.0;
  }
  for (double& coefficient : coefficients_) coefficient = std::max(coefficient, 0.0);
}

void StepCostModel::observe(const StepLoad& load, double step_s) {
  if (!(step_s > 0.0)) return;
  if (load.num_prefills == 0) {
    num_mixed_steps_ = 0;
    if (load.num_decodes == 0) return;
    decode_.learn(decode_features(load.num_decodes, load.decode_positions), step_s);
    return;
  }
  // Without decodes the fixed cost of a step is part of what the prompt tokens cost: it would be paid anyway.
  if (load.num_decodes > 0) ++num_mixed_steps_;
  if (load.num_decodes > 0 && !decode_.has_learned()) return;
  const double rest_s = step_s - decode_s(load.num_decodes, load.decode_positions);
  prefill_.learn(prefill_features(load.num_prefills, load.prefill_positions), std::max(rest_s, 0.0));
}

double StepCostModel::decode_s(int32_t num_decodes, int64_t decode_positions) const {
  return num_decodes == 0 ? 0.0 : decode_.predict(decode_features(num_decodes, decode_positions));
}

double StepCostModel::prefill_s(int64_t num_prefills, int64_t prefill_positions) const {
  return num_prefills == 0 ? 0.0 : prefill_.predict(prefill_features(num_prefills, prefill_positions));
}

double StepCostModel::step_s(const StepLoad& load) const {
  if ((load.num_decodes > 0 && !knows_decodes()) || (load.num_prefills > 0 && !knows_prefills())) return 0.0;
  return decode_s(load.num_decodes, load.decode_positions) +
         prefill_s(load.num_prefills, load.prefill_positions);
}

}  // namespace plait
