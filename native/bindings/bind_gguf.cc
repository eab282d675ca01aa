#include "bindings/bindings.h"

namespace plait {

void register_gguf(nb::module_&) {}

}  // namespace plait
