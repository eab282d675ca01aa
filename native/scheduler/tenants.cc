#include "scheduler/tenants.h"

#include <algorithm>
#include <limits>

namespace plait {

std::shared_ptr<Tenant> Tenants::enter(const std::string& name) {
  const auto [it, is_new] = active_.try_emplace(name);
  if (is_new) {
    double served = std::numeric_limits<double>::infinity();
    for (const auto& [other, tenant] : active_) {
      if (tenant) served = std::min(served, tenant->served);
    }
    it->second = std::make_shared<Tenant>();
    it->second->name = name;
    it->second->served = active_.size() == 1 ? 0.0 : served;
    for (const auto& [known, weight] : weights_) {
      if (known == name) it->second->weight = weight;
    }
  }
  ++it->second->num_requests;
  return it->second;
}

void Tenants::leave(Tenant& tenant) {
  if (--tenant.num_requests > 0) return;
  const auto it = active_.find(tenant.name);
  if (it != active_.end()) active_.erase(it);
}

}  // namespace plait
