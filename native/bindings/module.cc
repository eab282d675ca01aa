#include <nanobind/nanobind.h>

#include <string>

#include "base/error.h"
#include "bindings/bindings.h"
#include "fileio/bus_error.h"

namespace nb = nanobind;

namespace {

// plait::Error becomes plait._native.NativeError, whose args are (code, message).
const char* code_name(plait::ErrorCode code) {
  switch (code) {
    case plait::ErrorCode::kInvalidFile:
      return "invalid_file";
    case plait::ErrorCode::kUnsupported:
      return "unsupported";
    case plait::ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case plait::ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case plait::ErrorCode::kSystem:
      return "system";
    case plait::ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native core of plait.";
  // For what a fork inherits of its parent's engine: what is kept is not destroyed and counts as no leak.
  m.def("keep_forever", [](nb::handle object) {
    object.inc_ref();
    nb::set_leak_warnings(false);
  });
  m.def("explain_bus_errors", &plait::explain_bus_errors,
        "For commands: a bus error (a mapped file became shorter) is explained on stderr before it ends the "
        "process.");
  static nb::object native_error =
      nb::steal(PyErr_NewException("plait._native.NativeError", PyExc_RuntimeError, nullptr));
  m.attr("NativeError") = native_error;
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void*) {
        try {
          std::rethrow_exception(p);
        } catch (const plait::Error& e) {
          PyErr_SetObject(native_error.ptr(), nb::make_tuple(code_name(e.code()), e.what()).ptr());
        }
      },
      nullptr);
  plait::register_gguf(m);
  plait::register_sync(m);
  plait::register_trace(m);
  plait::register_kv(m);
  plait::register_kernels(m);
  plait::register_weights(m);
  plait::register_runtime(m);
  plait::register_kv_swap(m);
  plait::register_requests(m);
  plait::register_scheduler(m);
  plait::register_executors(m);
  plait::register_engine_loop(m);
  plait::register_bench(m);
}
