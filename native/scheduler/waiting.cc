#include "scheduler/waiting.h"

#include <algorithm>

#include "base/error.h"

namespace plait {

void WaitingQueue::push(Sequence& seq) {
  queue_of(seq).fresh.push_back(&seq);
  ++size_;
}

void WaitingQueue::push_front(Sequence& seq) {
  queue_of(seq).fresh.push_front(&seq);
  ++size_;
}

void WaitingQueue::push_resumed(Sequence& seq) {
  std::vector<Sequence*>& resumed = queue_of(seq).resumed;
  const auto place = std::upper_bound(resumed.begin(), resumed.end(), &seq,
                                      [](const Sequence* a, const Sequence* b) { return a->rank < b->rank; });
  resumed.insert(place, &seq);
  ++size_;
}

Sequence* WaitingQueue::peek() const {
  if (lanes_.empty()) return nullptr;
  const Lane& lane = lanes_.begin()->second;
  return std::min_element(lane.begin(), lane.end(),
                          [](const Queue& a, const Queue& b) { return a.tenant->served < b.tenant->served; })
      ->first();
}

void WaitingQueue::remove(Sequence& seq) {
  const auto lane = lanes_.find(seq.rank.priority);
  if (lane == lanes_.end()) throw Error(ErrorCode::kInternal, "a sequence is not in the waiting queue");
  const auto queue = std::find_if(lane->second.begin(), lane->second.end(),
                                  [&](const Queue& q) { return q.tenant == seq.request->tenant.get(); });
  if (queue == lane->second.end())
    throw Error(ErrorCode::kInternal, "a sequence is not in its tenant's queue");
  const auto resumed = std::find(queue->resumed.begin(), queue->resumed.end(), &seq);
  if (resumed != queue->resumed.end()) {
    queue->resumed.erase(resumed);
  } else {
    const auto fresh = std::find(queue->fresh.begin(), queue->fresh.end(), &seq);
    if (fresh == queue->fresh.end())
      throw Error(ErrorCode::kInternal, "a sequence is not in its tenant's queue");
    queue->fresh.erase(fresh);
  }
  --size_;
  if (!queue->resumed.empty() || !queue->fresh.empty()) return;
  lane->second.erase(queue);
  if (lane->second.empty()) lanes_.erase(lane);
}

WaitingQueue::Queue& WaitingQueue::queue_of(const Sequence& seq) {
  Lane& lane = lanes_[seq.rank.priority];
  const Tenant* tenant = seq.request->tenant.get();
  for (Queue& queue : lane) {
    if (queue.tenant == tenant) return queue;
  }
  lane.emplace_back().tenant = tenant;
  return lane.back();
}

}  // namespace plait
