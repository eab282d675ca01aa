// The main thread of an engine without Python: takes requests in, keeps the compute thread fed, gives outputs
// away. Knows: the order of work. Must not know: callbacks, clients, text, Python.
//
// Threads: any thread calls push, push_abort and push_stop and reads the gauges; one thread (I/O) calls
// try_pop; one thread calls start, join and the destructor. The loop's own thread owns the scheduler, its KV
// manager and the calls of the compute thread: nobody else may touch them between start() and the end.
//
// Queues: messages (many producers, main_bell rings) and outputs (one producer, outputs_bell rings). Both
// bounded: a full message ring is an answer; outputs that find no room wait in the loop, as one batch that
// grows, and are offered again every few milliseconds.
//
// End: after push_stop() all requests end with FinishReason::kAbort, steps in flight are waited for, the
// compute thread is stopped, and the last item of the outputs is the one with has_ended. An error that is no
// request's ends the loop the same way, with the error in that item; requests have no other last output then.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/gauge.h"
#include "base/latency_histogram.h"
#include "parallel/messenger_thread.h"
#include "runtime/compute_thread.h"
#include "runtime/swap_transfers.h"
#include "scheduler/scheduler.h"
#include "sync/doorbell.h"
#include "sync/mpsc_ring.h"
#include "sync/spsc_ring.h"

namespace plait {

// What the loop gives away: outputs in order, or word of its end.
struct EngineOutputs {
  std::vector<Output> outputs;
  bool has_ended = false;  // the last item; it has no outputs
  std::string error;       // why it ended; empty: it was told to
};

struct EngineLoopOptions {
  size_t num_messages = 1024;  // room for messages
  size_t num_outputs = 256;    // room for batches of outputs
  int32_t max_steps_in_flight = 2;
};

class EngineLoop {
 public:
  // `main_bell` must be the one that `compute` and `swap` ring. `swap` is where preempted sequences are
  // saved, if anywhere: null unless the scheduler's kv_block_bytes is set. Throws Error (kInvalidArgument)
  // for sizes of 0 or for more steps in flight than the compute thread takes.
  EngineLoop(std::shared_ptr<Scheduler> scheduler, std::shared_ptr<ComputeThread> compute,
             std::shared_ptr<Doorbell> main_bell, std::shared_ptr<Doorbell> outputs_bell,
             EngineLoopOptions options, std::shared_ptr<KvSwap> swap = nullptr);
  // Stops and joins; outputs that are left are dropped.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Starts the thread, once: else throws Error (kInvalidArgument).
  void start();

  // Any thread; never blocks. False when the ring is full: `request` is then as it was. What the scheduler
  // refuses ends with one output of kError for each choice.
  bool push(Request&& request);
  bool push_abort(int64_t request_id);
  // Any thread, any time, as often as one likes.
  void push_stop();
  // I/O thread. False when nothing is there.
  bool try_pop(EngineOutputs& out) { return outputs_.try_pop(out); }
  // Any thread: nobody takes outputs any more, so that the loop need not wait for room.
  void abandon_outputs();
  // Waits for the end, at most `timeout_ns` (< 0: no limit). True when the thread is gone or never began.
  bool join(int64_t timeout_ns);

  // Any thread, relaxed: each right by itself.
  const Scheduler& scheduler() const { return *scheduler_; }
  int64_t num_steps() const { return num_steps_.get(); }  // that ended
  int64_t num_failed_steps() const { return num_failed_steps_.get(); }
  int64_t step_ns() const { return step_ns_.get(); }        // total time of steps
  int64_t forward_ns() const { return forward_ns_.get(); }  // of it: without sampling
  int64_t num_steps_in_flight() const { return num_steps_in_flight_.get(); }
  // CLOCK_MONOTONIC of the last end of a step, 0 before the first.
  int64_t last_progress_ns() const { return last_progress_ns_.get(); }
  // From the arrived_ns of a request that is timed until the loop has taken it in.
  const LatencyHistogram& accepts() const { return accepts_; }
  size_t num_messages() const { return messages_.size(); }  // that wait
  size_t num_outputs() const { return outputs_.size(); }    // batches that wait

 private:
  struct Abort {
    int64_t request_id;
  };
  using Message = std::variant<std::monostate, Request, Abort>;

  void thread_main();
  void run(RealtimeMessenger& messenger);
  void take_results();
  void take_messages();
  void take_request(Request&& request);
  bool plan();
  void feed();
  void plan_steps();
  bool run_transfers();
  void send_outputs();
  bool try_flush();
  void leave(std::string error);
  int64_t timeout_ns();

  const std::shared_ptr<Scheduler> scheduler_;
  const std::shared_ptr<ComputeThread> compute_;
  const std::shared_ptr<Doorbell> main_bell_;
  const std::shared_ptr<Doorbell> outputs_bell_;
  const std::shared_ptr<KvSwap> swap_;
  const int32_t max_steps_in_flight_;
  MpscRing<Message> messages_;
  SpscRing<EngineOutputs> outputs_;
  // Written by any (release), read by the loop (acquire).
  std::atomic<bool> must_stop_{false};
  std::atomic<bool> are_outputs_abandoned_{false};
  // Written by the loop's thread (release) before it rings, read by join (acquire).
  std::atomic<bool> is_over_{false};
  const std::shared_ptr<Doorbell> over_bell_ = std::make_shared<Doorbell>();

  // The loop's thread only.
  bool is_stopping_ = false;
  int32_t num_in_flight_ = 0;
  EngineOutputs outbox_;
  Message message_;  // scratch, as the next two
  StepInput step_;
  StepResult result_;

  Gauge<int64_t> num_steps_, num_failed_steps_, step_ns_, forward_ns_, num_steps_in_flight_,
      last_progress_ns_;
  LatencyHistogram accepts_;
  bool is_started_ = false;
  std::thread thread_;
};

}  // namespace plait
