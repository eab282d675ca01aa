// How tenants share the time of a step. Knows: weights, what decodes and prompt tokens cost. Must not know:
// queues, blocks.
//
// With two tenants or more in a step, it may last as long as the one that wants least would take alone, times
// the sum of the weights over its own: nobody is slowed down more by others than by its share of the machine.
// Within that time each gets what it wants, and those that want more than their share take turns: of their
// decoding sequences those that waited longest, of their prompts shorter slices. One decode of each tenant is
// in every step, and some prompt tokens in every fourth at least, so that all move. The bound lasts for some
// steps after the others have left, so that who sends one request after the other need not wait for a long
// step each time.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/budget.h"
#include "scheduler/planned_step.h"
#include "scheduler/sequence.h"

namespace plait {

class FairShare {
 public:
  FairShare(int32_t max_batch_tokens, const PrefillPacer& pacer);

  // Sets is_passed_over of the running sequences: whether they decode, and this step goes without them.
  void choose_decodes(std::span<Sequence* const> running, int64_t step_id);
  // Whether choose_decodes has something to say of a step with one tenant only.
  bool is_needed(int64_t step_id) const { return has_passed_over_ || is_lasting(step_id); }
  // Whether the last choose_decodes left someone out.
  bool has_passed_over() const { return has_passed_over_; }
  // All decode: for a step in which those that were chosen had no blocks.
  void choose_all(std::span<Sequence* const> running);
  // Tokens for each prompt (oldest first) in a step that has these decodes, by tenant and by pace.
  std::vector<int32_t> share_prompts(std::span<Sequence* const> prompts,
                                     std::span<const PlannedStep::Row> decodes, int64_t step_id);

 private:
  // What a tenant wants of the step, and then what it gets.
  struct Part {
    Tenant* tenant = nullptr;
    std::vector<Sequence*> decodes;
    std::vector<PromptNeed> prompts;
    std::vector<size_t> prompt_idx;  // where they stand in the caller's list
    int64_t decode_positions = 0;
    double decodes_s = 0.0;
    double prompts_s = 0.0;
    double allotted_s = 0.0;
    bool is_cut = false;
  };

  std::span<Part> parts() { return {parts_.data(), num_parts_}; }
  std::span<const Part> parts() const { return {parts_.data(), num_parts_}; }
  Part& part_of(const Sequence& seq);
  bool try_share_by_tenant(int32_t room, int64_t step_id, size_t num_prompts, std::vector<int32_t>& shares);
  void clear();
  void price(int32_t room);
  double longest_step_s() const;
  void allot(double total_s);
  void pass_over(Part& part);
  bool is_lasting(int64_t step_id) const { return step_id < lasting_until_step_id_; }

  const int32_t max_batch_tokens_;
  const PrefillPacer& pacer_;
  // The first num_parts_ are in use; the others keep their memory.
  std::vector<Part> parts_;
  size_t num_parts_ = 0;
  bool has_passed_over_ = false;
  double lasting_s_ = 0.0;
  int64_t lasting_until_step_id_ = 0;
  int64_t last_probe_step_id_ = -kProbeInterval;
};

}  // namespace plait
