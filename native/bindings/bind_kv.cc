#include "bindings/bindings.h"

namespace plait {

void register_kv(nb::module_&) {}

}  // namespace plait
