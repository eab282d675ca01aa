#include "bindings/bindings.h"

namespace plait {

void register_sync(nb::module_&) {}

}  // namespace plait
