// Token-weighted fairness between tenants: who got least so far is next (a virtual token counter).
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace plait {

struct Tenant {
  std::string name;
  // Tokens computed for it while it was active: prompt tokens at admission, then each generated one.
  int64_t served = 0;
  int32_t num_requests = 0;
  int32_t num_running = 0;  // its sequences in the running set
};

// The tenants that have unfinished requests.
class Tenants {
 public:
  // The tenant of one more request. A newcomer starts level with the least served: no old credit.
  std::shared_ptr<Tenant> enter(const std::string& name);
  void leave(Tenant& tenant);
  size_t size() const { return active_.size(); }

 private:
  std::unordered_map<std::string, std::shared_ptr<Tenant>> active_;
};

}  // namespace plait
