// Token-weighted fairness between tenants: who got least so far is next (a virtual token counter).
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace plait {

struct Tenant {
  std::string name;
  double weight = 1.0;
  // Tokens computed for it while it was active, over its weight: prompt tokens at admission, then each
  // generated one.
  double served = 0.0;
  int32_t num_requests = 0;
  int32_t num_running = 0;  // its sequences in the running set
  int32_t part_idx = -1;    // scratch of FairShare

  void charge(int32_t num_tokens) { served += num_tokens / weight; }
};

// The tenants that have unfinished requests.
class Tenants {
 public:
  // Tenants without a weight have 1.
  explicit Tenants(const std::vector<std::pair<std::string, double>>& weights) : weights_(weights) {}

  // The tenant of one more request. A newcomer starts level with the least served: no old credit.
  std::shared_ptr<Tenant> enter(const std::string& name);
  void leave(Tenant& tenant);
  size_t size() const { return active_.size(); }

 private:
  const std::vector<std::pair<std::string, double>>& weights_;
  std::unordered_map<std::string, std::shared_ptr<Tenant>> active_;
};

}  // namespace plait
