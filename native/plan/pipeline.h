// Two stages of a plan on two parts of the team. Knows: who leads, who helps, which part of which half is
// due. Must not know: what parts do.
//
// Each stage runs its parts in the order of the plan, the first half before the second, and a half runs its
// parts in order: attention of a layer writes the KV of the first half before it reads for the second one,
// which may continue the same sequence. The first member of a stage leads it: it hands chunks to its crew and
// waits for the other stage. Every thread that waits runs chunks of either crew meanwhile.
//
// Threads: the owner of the team calls begin(); then each member calls lead() or help(), see Team::run_each.
#pragma once

#include <atomic>
#include <cstdint>

#include "parallel/team.h"
#include "plan/plan.h"

namespace plait {

class Pipeline {
 public:
  // Divides the team over the stages by what they read of the weights. Throws Error(kInvalidArgument) for a
  // team of one.
  Pipeline(const Plan& plan, const Weights& weights, int32_t num_threads);

  // Before a run of `num_parts` parts. Only while no member is in lead or help.
  void begin(int32_t num_parts);

  int32_t num_members(Stage stage) const;
  Stage stage_of(int32_t member) const;
  bool is_leader(int32_t member) const { return member == 0 || member == num_attention_; }
  Crew& crew(Stage stage) { return stage == Stage::kAttention ? attention_ : ffn_; }

  // Returns when `half` has run all parts before `part`; runs chunks until then.
  void wait_for(int32_t half, int32_t part, int32_t member);
  // The leader of the part's stage: `half` has run all parts up to `part`, with whatever they wrote.
  void finish(int32_t half, int32_t part);
  // Runs chunks until both halves have run all parts.
  void help(int32_t member);

 private:
  void work(int32_t member);
  bool has_run(int32_t half, int32_t part) const {
    return num_run_[half].value.load(std::memory_order_acquire) >= part;
  }

  // Parts that a half has run. finish's release store pairs with has_run's acquire load.
  struct alignas(64) Count {
    std::atomic<int32_t> value{0};
  };

  JobBell bell_;
  int32_t num_threads_;
  int32_t num_attention_;  // members [0, num_attention_) are attention's, the others FFN's
  Crew attention_;
  Crew ffn_;
  Count num_run_[2];
  int32_t num_parts_ = 0;
};

}  // namespace plait
