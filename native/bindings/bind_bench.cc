// Timers of kernels and queues, and the ceilings of the machine. Everything that measures or packs releases
// the GIL.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "bench/attention_timer.h"
#include "bench/matmul_timer.h"
#include "bench/queue_timer.h"
#include "bindings/bindings.h"
#include "fileio/gguf.h"

namespace plait {

namespace {

using namespace nb::literals;

MacUnit unit_of(const std::string& name) {
  if (name == "f32") return MacUnit::kF32;
  if (name == "int8") return MacUnit::kInt8;
  if (name == "int6") return MacUnit::kInt6;
  throw Error(ErrorCode::kInvalidArgument, "unknown kind of multiply-add " + name);
}

MatrixForm form_of(const std::string& name) {
  if (name == "plain") return MatrixForm::kPlain;
  if (name == "apart") return MatrixForm::kApart;
  if (name == "coarse") return MatrixForm::kCoarse;
  throw Error(ErrorCode::kInvalidArgument, "unknown form of a matrix " + name);
}

// The tensors must be of one type and shape.
MatmulTimer make_matmul_timer(Rig& rig, const GgufFile& file, const std::vector<std::string>& names,
                              size_t cold_bytes, const std::string& form) {
  std::vector<const std::byte*> sources;
  const TensorInfo* first = nullptr;
  for (const std::string& name : names) {
    const TensorInfo* tensor = file.find_tensor(name);
    if (tensor == nullptr) throw Error(ErrorCode::kInvalidFile, "the file has no tensor " + name);
    if (first == nullptr) first = tensor;
    if (tensor->type != first->type || tensor->rows() != first->rows() ||
        tensor->columns() != first->columns()) {
      throw Error(ErrorCode::kInvalidArgument, "tensor " + name + " is unlike " + std::string(first->name));
    }
    sources.push_back(file.tensor_data(*tensor));
  }
  if (first == nullptr) throw Error(ErrorCode::kInvalidArgument, "there is no matrix to time");
  try {
    // Checks the sizes before they are narrowed.
    packed_num_bytes(first->type, first->rows(), first->columns());
    return MatmulTimer(rig, first->type, static_cast<int32_t>(first->rows()),
                       static_cast<int32_t>(first->columns()), sources, cold_bytes, form_of(form));
  } catch (const Error& e) {
    throw Error(e.code(), "tensor " + names.front() + ": " + e.what());
  }
}

void register_queues(nb::module_& m) {
  m.def(
      "time_messages",
      [](const std::string& kind, int32_t num_producers, int32_t message_bytes, int64_t num_messages,
         int32_t capacity, int32_t repeats, std::vector<int32_t> cpus) {
        const QueueWork work{queue_kind(kind), num_producers, message_bytes,
                             num_messages,     capacity,      std::move(cpus)};
        return time_messages(work, repeats);
      },
      "kind"_a, "num_producers"_a, "message_bytes"_a, "num_messages"_a, "capacity"_a, "repeats"_a, "cpus"_a,
      nb::call_guard<nb::gil_scoped_release>(),
      "Check, then time messages between native threads; kind: \"spsc\", \"spsc-batch\", \"mpsc\", "
      "\"channel\" or \"mutex\"; 8 or 64 bytes. Seconds of one message, by run. Releases the GIL.");
  m.def(
      "time_round_trips",
      [](const std::string& kind, int64_t num_rounds, const std::vector<int32_t>& cpus) {
        return time_round_trips(queue_kind(kind), num_rounds, cpus);
      },
      "kind"_a, "num_rounds"_a, "cpus"_a, nb::call_guard<nb::gil_scoped_release>(),
      "Seconds of each round trip between two native threads, over two queues. Releases the GIL.");
  m.def("time_line_transfers", &time_line_transfers, "num_rounds"_a, "repeats"_a, "cpus"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Seconds that a cache line takes from one CPU to the other, by run. Releases the GIL.");
  nb::class_<Metronome>(m, "Metronome", "Rings a doorbell now and then from a native thread.")
      .def(
          "__init__",
          [](Metronome* self, std::shared_ptr<Doorbell> bell, double period_s) {
            new (self) Metronome(std::move(bell), static_cast<int64_t>(period_s * 1e9));
          },
          "bell"_a, "period_s"_a)
      .def_prop_ro("rung_at_ns", &Metronome::rung_at_ns, "time.monotonic_ns() just before the last ring.")
      .def("stop", &Metronome::stop, nb::call_guard<nb::gil_scoped_release>(),
           "Wait for the thread to end, a period at most. Releases the GIL.");
}

}  // namespace

void register_bench(nb::module_& m) {
  register_queues(m);
  nb::class_<Timing>(m, "Timing")
      .def_ro("difference", &Timing::difference,
              "How the kernel differs from the scalar one, \"\" when it does not; then nothing was timed.")
      .def_ro("seconds", &Timing::seconds, "Of one unit of work, by run.");

  nb::class_<Rig>(m, "KernelRig",
                  "Kernels and a team of threads to time them with; for one thread at a time.")
      .def(
          "__init__",
          [](Rig* self, const std::string& isa, int32_t num_threads, std::vector<int32_t> cpus) {
            if (num_threads < 1) throw Error(ErrorCode::kInvalidArgument, "a team has a thread at least");
            new (self) Rig(kernel_table(isa_of(isa)), num_threads, std::move(cpus));
          },
          "isa"_a, "num_threads"_a, "cpus"_a)
      .def("read_rates", &Rig::read_rates, "num_bytes"_a, "is_alone"_a, "repeats"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Bytes per second that one or all threads read from memory, by run. Releases the GIL.")
      .def(
          "mac_rates",
          [](Rig& rig, const std::string& unit, bool is_alone, int32_t repeats) {
            return rig.mac_rates(unit_of(unit), is_alone, repeats);
          },
          "unit"_a, "is_alone"_a, "repeats"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Multiply-adds per second of one or all threads in registers, by run; unit: \"f32\", \"int8\" or "
          "\"int6\". Releases the GIL.");

  nb::class_<MatmulTimer>(m, "MatmulTimer", "One matrix kernel at one shape.")
      .def(
          "__init__",
          [](MatmulTimer* self, Rig& rig, const GgufFile& file, const std::vector<std::string>& names,
             size_t cold_bytes, const std::string& form) {
            new (self) MatmulTimer(make_matmul_timer(rig, file, names, cold_bytes, form));
          },
          "rig"_a, "file"_a, "tensors"_a, "cold_bytes"_a, "form"_a = "plain", nb::keep_alive<1, 2>(),
          nb::call_guard<nb::gil_scoped_release>(),
          "Packs tensors of one type and shape, again and again until they take cold_bytes. form: \"plain\"; "
          "\"apart\", as those that are searched, all of it; \"coarse\", the part of it that a search reads. "
          "Releases the GIL.")
      .def_prop_ro("matrix_bytes", &MatmulTimer::matrix_bytes, "That a product of one matrix reads.")
      .def_prop_ro("num_copies", &MatmulTimer::num_copies)
      .def("run", &MatmulTimer::run, "num_tokens"_a, "repeats"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Check, then time products of a whole matrix with num_tokens tokens. Releases the GIL.");

  nb::class_<AttentionTimer>(m, "AttentionTimer", "The attention kernels at one shape.")
      .def(
          "__init__",
          [](AttentionTimer* self, Rig& rig, const KvLayout& layout, int32_t group, int32_t context,
             int32_t num_queries, int32_t window, float scale, float softcap, size_t cold_bytes) {
            const AttentionShape shape{group, context, num_queries, window, scale, softcap};
            new (self) AttentionTimer(rig, layout, shape, cold_bytes);
          },
          "rig"_a, "layout"_a, "group"_a, "context"_a, "num_queries"_a, "window"_a, "scale"_a, "softcap"_a,
          "cold_bytes"_a, nb::keep_alive<1, 2>(), nb::call_guard<nb::gil_scoped_release>(),
          "Fills layers of sequences of `context` positions until they take cold_bytes. Releases the GIL.")
      .def_prop_ro("macs", &AttentionTimer::macs, "Of one layer of one sequence.")
      .def_prop_ro("kv_bytes", &AttentionTimer::kv_bytes, "That its queries see.")
      .def("run", &AttentionTimer::run, "repeats"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Check, then time all heads of one layer of one sequence. Releases the GIL.");
}

}  // namespace plait
