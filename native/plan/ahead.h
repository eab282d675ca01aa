// Which weights each member of a team reads first in the operations of a plan, so that it can fetch them
// while it waits for the others. A guess: what is fetched changes how fast a step is, never what it computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/weights.h"

namespace plait {

struct WeightRun {
  const std::byte* begin = nullptr;
  size_t num_bytes = 0;
};

// By operation and member: weights of the next operation that has some, after the last one those of the
// first.
std::vector<std::vector<WeightRun>> weights_ahead(const Plan& plan, const Weights& weights,
                                                  int32_t num_members);

}  // namespace plait
