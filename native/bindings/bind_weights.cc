// Weights and the file that keeps them packed. The GIL is released while tensors are packed, while a packed
// file is read and while it is written; the other calls take microseconds.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "fileio/gguf.h"
#include "fileio/packed_writer.h"
#include "kernels/matmul/packed_layout.h"
#include "plan/weights.h"

namespace plait {

namespace {

using namespace nb::literals;

const TensorInfo& tensor_of(const GgufFile& file, const std::string& name) {
  const TensorInfo* tensor = file.find_tensor(name);
  if (tensor == nullptr) throw Error(ErrorCode::kInvalidFile, "the file has no tensor " + name);
  return *tensor;
}

const TensorInfo& vector_of(const GgufFile& file, const std::string& name) {
  const TensorInfo& tensor = tensor_of(file, name);
  if (tensor.rows() != 1) throw Error(ErrorCode::kInvalidFile, "tensor " + name + " is no vector");
  return tensor;
}

FileMatrix matrix_of(const GgufFile& file, const TensorInfo& tensor, bool is_searched) {
  return {std::string(tensor.name), tensor.type, file.tensor_data(tensor), tensor.rows(),
          tensor.columns(),         is_searched};
}

// Gives the source's memory back as soon as it is packed: the model is never in memory twice.
DoneFn releaser(const GgufFile& file, const TensorInfo& tensor) {
  return [&file, at = tensor.offset](uint64_t offset, uint64_t num) { file.release(at + offset, num); };
}

void register_loading(nb::module_& m) {
  nb::class_<Weights>(m, "Weights", "Packed weights of one model; filled at load, then read-only.")
      .def(nb::init<size_t>(), "num_bytes"_a)
      .def_static(
          "from_packed",
          [](const std::shared_ptr<PackedFile>& packed) {
            return std::make_shared<Weights>(packed, packed->data());
          },
          "packed"_a, "To be filled by place_matrix and place_vector, in the order of the file.")
      .def_static(
          "matrix_bytes",
          [](const GgufFile& file, const std::string& name, bool is_searched) {
            return Weights::padded(
                Weights::packed_bytes(matrix_of(file, tensor_of(file, name), is_searched)));
          },
          "file"_a, "tensor"_a, "is_searched"_a = false, "Bytes that the matrix takes in packed memory.")
      .def_static(
          "vector_bytes",
          [](const GgufFile& file, const std::string& name) {
            return Weights::padded(static_cast<size_t>(vector_of(file, name).columns()) * sizeof(float));
          },
          "file"_a, "tensor"_a, "Bytes that the vector takes in a packed file.")
      .def(
          "add_matrix",
          [](Weights& weights, const GgufFile& file, const std::string& name, int32_t num_threads,
             bool is_searched) {
            const TensorInfo& tensor = tensor_of(file, name);
            const nb::gil_scoped_release release;
            file.prefetch(tensor);
            return weights.add_matrix(matrix_of(file, tensor, is_searched), num_threads,
                                      releaser(file, tensor));
          },
          "file"_a, "tensor"_a, "num_threads"_a, "is_searched"_a = false,
          "Pack a tensor and return its matrix id; ``is_searched``: so that the largest of its products can "
          "be "
          "found without reading all of it, where its type allows that. Releases the GIL.")
      .def(
          "add_vector",
          [](Weights& weights, const GgufFile& file, const std::string& name) {
            const TensorInfo& tensor = vector_of(file, name);
            return weights.add_vector(name, tensor.type, file.tensor_data(tensor), tensor.columns());
          },
          "file"_a, "tensor"_a, "Copy a one-dimensional tensor as float32 and return its vector id.")
      .def(
          "place_matrix",
          [](Weights& weights, const GgufFile& file, const std::string& name, bool is_searched) {
            return weights.place_matrix(matrix_of(file, tensor_of(file, name), is_searched));
          },
          "file"_a, "tensor"_a, "is_searched"_a = false,
          "The next matrix of the packed file; returns its id.")
      .def(
          "place_vector",
          [](Weights& weights, const GgufFile& file, const std::string& name) {
            return weights.place_vector(name, vector_of(file, name).columns());
          },
          "file"_a, "tensor"_a, "The next vector of the packed file; returns its id.")
      .def("vector_values",
           [](const Weights& weights, int32_t id) {
             if (id < 0 || id >= weights.num_vectors())
               throw Error(ErrorCode::kInvalidArgument, "no such vector");
             const auto values = weights.vector(id);
             return std::vector<float>(values.begin(), values.end());
           })
      .def(
          "is_searched",
          [](const Weights& weights, const std::string& name) {
            for (int32_t id = 0; id < weights.num_matrices(); ++id) {
              if (weights.matrix_name(id) == name) return weights.coarse(id) != nullptr;
            }
            throw Error(ErrorCode::kInvalidArgument, "no matrix " + name);
          },
          "matrix"_a, "The largest of its products can be found without reading all of it.")
      .def_prop_ro("used_bytes", &Weights::used_bytes);
}

void register_packed_file(nb::module_& m) {
  m.def(
      "packed_layout_name", [](const std::string& isa) { return packed_layout_name(isa_of(isa)); }, "isa"_a,
      "The layout in which weights are packed for an instruction set.");

  nb::class_<PackedFile>(m, "PackedFile",
                         "A checked packed file, mapped read-only and locked against removal.")
      .def_static(
          "open",
          [](int folder, const std::string& name, std::string key, uint64_t num_bytes, int32_t num_threads,
             std::optional<bool> share) {
            const PackedMemory memory = !share   ? PackedMemory::kAuto
                                        : *share ? PackedMemory::kShared
                                                 : PackedMemory::kPrivate;
            const nb::gil_scoped_release release;
            return std::const_pointer_cast<PackedFile>(
                PackedFile::open(folder, name, {std::move(key), num_bytes}, num_threads, memory));
          },
          "folder"_a, "name"_a, "key"_a, "num_bytes"_a, "num_threads"_a, "share"_a = nb::none(),
          nb::sig("def open(folder: int, name: str, key: str, num_bytes: int, num_threads: int, "
                  "share: bool | None = None) -> PackedFile | None"),
          "None: there is no such file. Raises NativeError: \"invalid_file\" when it is damaged or not to be "
          "trusted. ``share`` None: the file's own pages, unless only a copy has huge pages. Releases the "
          "GIL.")
      .def_prop_ro("is_shared", &PackedFile::is_shared, "The memory is the file's own pages.")
      .def_prop_ro(
          "num_huge_bytes", [](const PackedFile& packed) { return num_huge_bytes(packed.data()); },
          "How much of the memory is in huge pages now.");

  nb::class_<PackedWriter>(m, "PackedWriter",
                           "Writes a packed file; without publish() nothing is left of it.")
      .def_static(
          "try_create",
          [](int folder, const std::string& name, std::string key, uint64_t num_bytes) {
            const nb::gil_scoped_release release;
            return PackedWriter::try_create(folder, name, {std::move(key), num_bytes});
          },
          "folder"_a, "name"_a, "key"_a, "num_bytes"_a,
          nb::sig("def try_create(folder: int, name: str, key: str, num_bytes: int) -> PackedWriter | None"),
          "None: another process writes this file now. Sets disk space aside; releases the GIL.")
      .def(
          "add_matrix",
          [](PackedWriter& writer, const GgufFile& file, const std::string& name, int32_t num_threads,
             bool is_searched) {
            const TensorInfo& tensor = tensor_of(file, name);
            const nb::gil_scoped_release release;
            file.prefetch(tensor);
            Weights::pack_matrix_to([&](std::span<const std::byte> bytes) { writer.append(bytes); },
                                    matrix_of(file, tensor, is_searched), num_threads,
                                    releaser(file, tensor));
            writer.pad(Weights::kAlignment);
          },
          "file"_a, "tensor"_a, "num_threads"_a, "is_searched"_a = false,
          "Pack the next tensor. Releases the GIL.")
      .def(
          "add_vector",
          [](PackedWriter& writer, const GgufFile& file, const std::string& name) {
            const TensorInfo& tensor = vector_of(file, name);
            std::vector<float> values(static_cast<size_t>(tensor.columns()));
            dequantize_row(tensor.type, file.tensor_data(tensor), tensor.columns(), values.data());
            writer.append(std::as_bytes(std::span(values)));
            writer.pad(Weights::kAlignment);
          },
          "file"_a, "tensor"_a, "Write the next vector as float32.")
      .def("publish", &PackedWriter::publish, nb::call_guard<nb::gil_scoped_release>(),
           "Give the file its name once it is on the disk. Releases the GIL.");
}

}  // namespace

void register_weights(nb::module_& m) {
  register_loading(m);
  register_packed_file(m);
}

}  // namespace plait
