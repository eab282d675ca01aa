// Instruction sets by name, for the bindings.
#pragma once

#include <string>

#include "base/error.h"
#include "cpu/isa.h"

namespace plait {

// Throws Error(kUnsupported) when there is none of that name or it cannot run here.
inline Isa isa_of(const std::string& name) {
  for (const Isa isa : supported_isas()) {
    if (name == isa_name(isa)) return isa;
  }
  throw Error(ErrorCode::kUnsupported,
              "instruction set " + name + " is unknown or not supported by this CPU");
}

}  // namespace plait
