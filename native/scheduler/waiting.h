// Sequences that wait for a slot and blocks, in the order in which they will be admitted.
//
// Order: priority; then the tenant that was served least; of one tenant, those that ran before (preempted
// ones, by rank), then by arrival. Nobody of a tenant is passed over: when the first does not fit, the others
// wait too, so a large prompt cannot starve behind small ones.
//
// Owner: the thread that schedules.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <vector>

#include "scheduler/sequence.h"

namespace plait {

class WaitingQueue {
 public:
  size_t size() const { return size_; }
  bool is_empty() const { return size_ == 0; }
  void push(Sequence& seq);
  // For a choice that could not be forked with its siblings: next of its tenant.
  void push_front(Sequence& seq);
  // For a preempted sequence: before all of its tenant that never ran, in order of rank.
  void push_resumed(Sequence& seq);
  // The next to admit, or null.
  Sequence* peek() const;
  // Takes out a sequence that is in the queue, wherever it stands. Throws Error (kInternal) if it is not.
  void remove(Sequence& seq);

 private:
  // One tenant's, of one priority; never empty between calls.
  struct Queue {
    const Tenant* tenant = nullptr;
    std::vector<Sequence*> resumed;
    std::deque<Sequence*> fresh;

    Sequence* first() const { return resumed.empty() ? fresh.front() : resumed.front(); }
  };
  // The tenants of one priority, the one that has waited longest first.
  using Lane = std::vector<Queue>;

  Queue& queue_of(const Sequence& seq);

  std::map<int32_t, Lane> lanes_;  // by priority; no empty ones
  size_t size_ = 0;
};

}  // namespace plait
