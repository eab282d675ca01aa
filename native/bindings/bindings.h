// The only folder that knows nanobind: one register_x() per file. Every call that can take longer than some
// microseconds releases the GIL; the docstring says so.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "cpu/isa.h"

namespace plait {

namespace nb = nanobind;

// The supported ISA of that name; throws Error(kUnsupported).
Isa isa_of(const std::string& name);

void register_gguf(nb::module_& m);         // GGUF files
void register_sync(nb::module_& m);         // rings and doorbells
void register_kv(nb::module_& m);           // the KV manager
void register_kernels(nb::module_& m);      // ISA, kernels for tests
void register_bench(nb::module_& m);        // timers of kernels, ceilings of the machine
void register_weights(nb::module_& m);      // weights and their packed file
void register_runtime(nb::module_& m);      // plan, steps, KV storage
void register_kv_swap(nb::module_& m);      // saved KV blocks
void register_requests(nb::module_& m);     // requests and limits for the scheduler
void register_scheduler(nb::module_& m);    // requests, the scheduler, outputs
void register_executors(nb::module_& m);    // the compute thread, the inline executor
void register_engine_loop(nb::module_& m);  // the main thread without Python
void register_trace(nb::module_& m);        // events for Perfetto

}  // namespace plait
