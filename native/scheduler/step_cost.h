// What a step costs, learned from the steps that ran. Knows: counts and seconds. Must not know: sequences.
//
//   step without prompt tokens = fixed + per decode token + per position that decodes attend to
//   what prompt tokens add     = per prompt token + per position that they attend to
//
// Each line is a least squares fit that forgets (the last some fifty steps of its kind count) and only when
// it learns: a line whose kind of step does not occur keeps what it knows. A step that is far off the
// prediction, as when the kernel takes a thread off its CPU, counts little; when all steps are, the machine
// has changed, and they count again. Costs are never negative.
//
// Owner: the thread that schedules.
#pragma once

#include <array>
#include <cstdint>

namespace plait {

// What a step computes.
struct StepLoad {
  int32_t num_decodes = 0;        // tokens of sequences that decode
  int64_t decode_positions = 0;   // sum over them of the positions that each attends to
  int32_t num_prefills = 0;       // prompt tokens, recomputed ones included
  int64_t prefill_positions = 0;  // sum over them of the positions that each attends to

  bool operator==(const StepLoad&) const = default;
};

// Sum of the positions that the tokens at begin..end of a sequence attend to.
constexpr int64_t attended_positions(int64_t begin, int64_t end) {
  return (end * (end + 1) - begin * (begin + 1)) / 2;
}

// Seconds as a sum of three non-negative coefficients times the features (1, tokens, positions).
class CostLine {
 public:
  using Features = std::array<double, 3>;

  // Before the first lesson: 0.
  double predict(const Features& features) const;
  // `of_step`: not all 0.
  void learn(const Features& of_step, double of_step_s);
  bool has_learned() const { return num_lessons_ > 0; }
  double fixed_s() const { return coefficients_[0]; }

 private:
  void solve();

  // Sums over the lessons, weighted: features times features, features times seconds.
  std::array<Features, 3> squares_{};
  Features products_{};
  Features coefficients_{};
  double typical_error_s_ = 0.0;
  int64_t num_lessons_ = 0;
};

class StepCostModel {
 public:
  // Learns from a step that ran. One without tokens or time is ignored.
  void observe(const StepLoad& load, double step_s);
  // Seconds of a step of these decodes only; 0 when no such step was seen.
  double decode_s(int32_t num_decodes, int64_t decode_positions) const;
  // Seconds that these prompt tokens add to a step that has decodes; 0 when none were seen.
  double prefill_s(int64_t num_prefills, int64_t prefill_positions) const;
  // Seconds of a whole step; 0 when a part of it was never seen.
  double step_s(const StepLoad& load) const;
  // Of decode_s, what does not depend on how many there are.
  double fixed_s() const { return decode_.fixed_s(); }
  // Steps with decodes and prompt tokens since the last one of decodes only.
  int32_t num_mixed_steps() const { return num_mixed_steps_; }
  bool knows_decodes() const { return decode_.has_learned(); }
  bool knows_prefills() const { return prefill_.has_learned(); }

 private:
  CostLine decode_;
  CostLine prefill_;
  int32_t num_mixed_steps_ = 0;
};

}  // namespace plait
