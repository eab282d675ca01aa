#include "bindings/bindings.h"

namespace plait {

void register_runtime(nb::module_&) {}

}  // namespace plait
