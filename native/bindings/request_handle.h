// The Python faces of a request and of a batch of outputs, so that other bindings can take them.
#pragma once

#include <utility>
#include <vector>

#include "base/error.h"
#include "scheduler/request.h"

namespace plait {

// Bound as plait._native.Request. Guarded by the GIL. Its content is taken once; the rest stays readable.
class RequestHandle {
 public:
  explicit RequestHandle(Request&& request)
      : request_id_(request.request_id),
        n_(request.n),
        num_prompt_(request.prompt_ids.size()),
        arrived_ns_(request.arrived_ns),
        is_timed_(request.is_timed),
        request_(std::move(request)) {}

  int64_t request_id() const { return request_id_; }
  int32_t n() const { return n_; }
  size_t num_prompt() const { return num_prompt_; }
  int64_t arrived_ns() const { return arrived_ns_; }
  bool is_timed() const { return is_timed_; }
  // Throws Error (kInvalidArgument) when the content was taken.
  const Request& read() const {
    if (is_taken_) throw Error(ErrorCode::kInvalidArgument, "the request has been taken already");
    return request_;
  }
  Request& edit() { return const_cast<Request&>(read()); }
  void set_taken() { is_taken_ = true; }

 private:
  int64_t request_id_;
  int32_t n_;
  size_t num_prompt_;
  int64_t arrived_ns_;
  bool is_timed_;
  Request request_;
  bool is_taken_ = false;
};

// Bound as plait._native.OutputBatch.
struct OutputBatch {
  std::vector<Output> outputs;
};

}  // namespace plait
