// The instruction set that the kernels use.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "cpu/isa.h"

namespace plait {

void register_kernels(nb::module_& m) {
  m.def(
      "choose_isa",
      [] {
        IsaChoice choice = choose_isa();
        return std::pair<std::string, std::string>(isa_name(choice.isa), choice.reason);
      },
      "(name, reason) of the instruction set to use; PLAIT_FORCE_ISA forces one. Raises NativeError when it "
      "cannot run.");
}

}  // namespace plait
