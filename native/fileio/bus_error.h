// What a program says when a mapped file loses bytes under it. Knows: signals.
#pragma once

namespace plait {

// From now on, a bus error writes one line to stderr before it ends the process, as it would without. For
// programs only: a library must not change what signals do. Does nothing where somebody else handles them.
void explain_bus_errors();

}  // namespace plait
