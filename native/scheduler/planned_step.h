// What the scheduler remembers of a step that it planned: whose rows it holds. The numbers that compute needs
// are in the StepInput.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
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
  // Compute looks at it (StepInput::is_unwanted) until the result is there.
  const std::shared_ptr<std::atomic<bool>> is_unwanted = std::make_shared<std::atomic<bool>>(false);

  // Whether anybody waits for what it computes. Positions of a prompt are for all choices, forked already or
  // not.
  bool is_wanted() const {
    const auto is_open = [](const Sequence* seq) { return seq->state != SequenceState::kFinished; };
    const auto is_row_wanted = [&](const Row& row) {
      return row.end <= row.seq->num_prompt ? row.seq->request->num_open > 0 : is_open(row.seq);
    };
    return std::any_of(rows.begin(), rows.end(), is_row_wanted) ||
           std::any_of(forked.begin(), forked.end(), is_open) ||
           std::any_of(starts.begin(), starts.end(), is_open);
  }

  // Empties it and keeps its memory.
  void clear() {
    load = {};
    rows.clear();
    sampled.clear();
    scored.clear();
    forked.clear();
    starts.clear();
    is_unwanted->store(false, std::memory_order_relaxed);
  }
};

}  // namespace plait
