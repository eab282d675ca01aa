// What the scheduler remembers of a step that it planned: whose rows it holds. The numbers that compute needs
// are in the StepInput.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/sequence.h"
#include "scheduler/step_cost.h"

namespace plait {

struct PlannedStep {
  struct Row {
    Sequence* seq;
    int32_t end;  // positions that are filled after the step
  };
  struct Score {
    Sequence* seq;
    int32_t token;
  };

  int64_t step_id = 0;
  StepLoad load;
  std::vector<Row> rows;           // by entry of StepInput::seq_slots
  std::vector<Sequence*> sampled;  // by entry of StepInput::sample_slots
  std::vector<Score> scored;       // by entry of StepInput::scores
  std::vector<Sequence*> forked;   // in `sampled`, without rows of their own
  std::vector<Sequence*> starts;   // by entry of StepInput::slot_starts

  // Empties it and keeps its memory.
  void clear() {
    load = {};
    rows.clear();
    sampled.clear();
    scored.clear();
    forked.clear();
    starts.clear();
  }
};

}  // namespace plait
