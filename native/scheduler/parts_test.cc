// The small parts of the scheduler: seeds, checks, tenants, the waiting queue.
#include <functional>
#include <set>

#include "base/error.h"
#include "base/test.h"
#include "scheduler/limits.h"
#include "scheduler/request.h"
#include "scheduler/tenants.h"
#include "scheduler/waiting.h"

using namespace plait;

namespace {

Request valid_request() {
  Request request;
  request.prompt_ids = {1, 2, 3};
  request.max_tokens = 4;
  return request;
}

std::string refusal_of(const Request& request) {
  try {
    check_request(request, 10);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

std::string limits_refusal(const std::function<void(SchedulerLimits&)>& change) {
  SchedulerLimits limits;
  limits.num_blocks = limits.block_tokens = 4;
  change(limits);
  try {
    check_limits(limits);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

struct Entry {
  Entry(std::shared_ptr<Tenant> tenant, int32_t priority, int64_t arrival) {
    request.tenant = std::move(tenant);
    Sequence& seq = request.choices.emplace_back();
    seq.request = &request;
    seq.rank = {priority, arrival, 0};
  }
  Sequence& seq() { return request.choices.front(); }

  RequestState request;
};

}  // namespace

TEST(seeds_of_choices_differ_and_the_first_is_the_requests_own) {
  std::set<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (int32_t index = 0; index < 64; ++index) seeds.insert(derive_seed(seed, index));
  }
  CHECK_EQ(seeds.size(), size_t{50 * 64});
  CHECK_EQ(derive_seed(12, 0), uint64_t{12});
}

TEST(requests_that_no_engine_could_run_are_refused_by_name) {
  CHECK_EQ(refusal_of(valid_request()), std::string());
  const auto changed = [](const std::function<void(Request&)>& change) {
    Request request = valid_request();
    change(request);
    return refusal_of(request);
  };
  const auto begins = [](const std::string& text, const char* start) { return text.rfind(start, 0) == 0; };
  CHECK(begins(changed([](Request& r) { r.prompt_ids.clear(); }), "prompt_ids must"));
  CHECK(begins(changed([](Request& r) { r.prompt_ids[1] = -1; }), "prompt_ids: token id -1"));
  CHECK(begins(changed([](Request& r) { r.prompt_ids[1] = 10; }), "prompt_ids: token id 10"));
  CHECK(begins(changed([](Request& r) { r.produced_ids = {11}; }), "produced_ids: token id 11"));
  CHECK(begins(changed([](Request& r) { r.n = 0; }), "n must"));
  CHECK(begins(changed([](Request& r) { r.n = 65; }), "n must"));
  CHECK(begins(changed([](Request& r) { r.max_tokens = 0; }), "max_tokens must"));
  CHECK(begins(changed([](Request& r) { r.max_tokens = INT32_MAX; }), "prompt_ids and max_tokens"));
  CHECK(begins(changed([](Request& r) { r.produced_ids = {1, 2, 3, 4}; }), "produced_ids must"));
  CHECK(begins(changed([](Request& r) {
                 r.produced_ids = {1};
                 r.n = 2;
               }),
               "produced_ids must"));
  CHECK(begins(changed([](Request& r) {
                 r.produced_ids = {1};
                 r.num_prompt_logprobs = 0;
               }),
               "produced_ids must"));
}

TEST(limits_out_of_range_are_refused_by_name) {
  CHECK_EQ(limits_refusal([](SchedulerLimits&) {}), std::string());
  CHECK_EQ(limits_refusal([](SchedulerLimits& l) { l.max_batch_size = 0; }),
           std::string("max_batch_size must be at least 1, got 0"));
  CHECK(limits_refusal([](SchedulerLimits& l) { l.num_blocks = -1; }).rfind("num_blocks", 0) == 0);
  CHECK(limits_refusal([](SchedulerLimits& l) { l.block_tokens = 0; }).rfind("block_tokens", 0) == 0);
  CHECK(limits_refusal([](SchedulerLimits& l) { l.max_batch_tokens = 0; }).rfind("max_batch_tokens", 0) == 0);
  CHECK(limits_refusal([](SchedulerLimits& l) { l.prefill_chunk_tokens = 0; }).rfind("prefill_chunk", 0) ==
        0);
  CHECK(limits_refusal([](SchedulerLimits& l) { l.kv_block_bytes = -1; }).rfind("kv_block_bytes", 0) == 0);
  CHECK(limits_refusal([](SchedulerLimits& l) { l.tenant_weights = {{"a", 0.0}}; }).rfind("tenant_w", 0) ==
        0);
  CHECK(limits_refusal([](SchedulerLimits& l) { l.target_step_s = -1; }).rfind("target_step_s", 0) == 0);
  CHECK(limits_refusal([](SchedulerLimits& l) { l.batch_timeout_s = 0.0 / 0.0; }).rfind("batch_timeout", 0) ==
        0);
}

TEST(tenants_level_a_newcomer_and_forget_the_idle) {
  const std::vector<std::pair<std::string, double>> weights = {{"heavy", 4.0}};
  Tenants tenants(weights);
  const auto a = tenants.enter("a");
  const auto b = tenants.enter("b");
  a->served = 100;
  b->served = 40;
  CHECK_EQ(tenants.enter("c")->served, 40.0);
  CHECK(tenants.enter("a") == a);
  tenants.leave(*a);
  CHECK_EQ(tenants.size(), size_t{3});
  tenants.leave(*a);
  CHECK_EQ(tenants.enter("a")->served, 40.0);
}

TEST(a_weight_makes_tokens_cheaper) {
  const std::vector<std::pair<std::string, double>> weights = {{"heavy", 4.0}};
  Tenants tenants(weights);
  const auto heavy = tenants.enter("heavy");
  const auto other = tenants.enter("other");
  heavy->charge(40);
  other->charge(10);
  CHECK_EQ(heavy->served, other->served);
  CHECK_EQ(heavy->weight, 4.0);
  CHECK_EQ(other->weight, 1.0);
}

TEST(the_queue_goes_by_priority_then_tenant_then_age) {
  const std::vector<std::pair<std::string, double>> weights = {{"heavy", 4.0}};
  Tenants tenants(weights);
  const auto a = tenants.enter("a");
  const auto b = tenants.enter("b");
  Entry a1(a, 0, 1), a2(a, 0, 2), b3(b, 0, 3), urgent(a, -1, 4), resumed(a, 0, 0);
  WaitingQueue queue;
  CHECK(queue.peek() == nullptr);
  for (Entry* entry : {&a1, &a2, &b3}) queue.push(entry->seq());
  CHECK(queue.peek() == &a1.seq());  // equally served: the tenant that came first
  a->served = 10;
  CHECK(queue.peek() == &b3.seq());
  b->served = 20;
  queue.push_resumed(resumed.seq());
  CHECK(queue.peek() == &resumed.seq());
  queue.push(urgent.seq());
  CHECK(queue.peek() == &urgent.seq());
  for (Entry* entry : {&urgent, &a2, &resumed, &b3, &a1}) queue.remove(entry->seq());
  CHECK(queue.is_empty());
  CHECK(queue.peek() == nullptr);
  CHECK_THROWS(queue.remove(a1.seq()));
}

TEST_MAIN()
