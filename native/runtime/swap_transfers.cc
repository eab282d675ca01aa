#include "runtime/swap_transfers.h"

#include <utility>

namespace plait {

namespace {

bool try_begin(KvSwap& swap, SwapRequest&& request) {
  return request.kind == SwapRequest::Kind::kSave ? swap.try_save(request.ticket, std::move(request.snapshot))
                                                  : swap.try_fetch(request.ticket, std::move(request.blocks));
}

}  // namespace

bool run_swap_transfers(Scheduler& scheduler, KvSwap& swap) {
  static_assert(SwapRequest::kSkipBlock == KvSwap::kSkipBlock);
  bool has_answers = false;
  KvTransfer transfer;
  while (swap.try_pop(transfer)) {
    has_answers = true;
    const double seconds = static_cast<double>(transfer.end_ns - transfer.begin_ns) * 1e-9;
    scheduler.finish_transfer({transfer.ticket, transfer.ok, transfer.num_bytes, seconds});
  }
  // An answer may bring new wishes: a failed one is dropped.
  for (std::vector<SwapRequest> requests = scheduler.take_swap_requests(); !requests.empty();
       requests = scheduler.take_swap_requests()) {
    for (SwapRequest& request : requests) {
      if (request.kind == SwapRequest::Kind::kDrop) {
        swap.drop(request.ticket);
        continue;
      }
      const int64_t ticket = request.ticket;
      if (try_begin(swap, std::move(request))) continue;
      has_answers = true;
      scheduler.finish_transfer({ticket, false, 0, 0.0});
    }
  }
  return has_answers;
}

}  // namespace plait
