// The Python face of a block-table snapshot, so that other bindings can take one without copying it through a
// list.
#pragma once

#include "kv/kv_manager.h"

namespace plait {

// Bound as plait._native.BlockTable. Immutable; `blocks` is never null.
struct BlockTableHandle {
  BlockTable blocks;
};

}  // namespace plait
