// GGUF files for Python. Parsing runs without the GIL; metadata is converted when it is asked for.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "bindings/bindings.h"
#include "fileio/gguf.h"

namespace plait {
namespace {

nb::object to_python(ByteReader& reader, GgufValueType type);

PyObject* checked(PyObject* object) {
  if (object == nullptr) nb::raise_python_error();
  return object;
}

PyObject* string_to_python(std::string_view text) {
  return checked(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr));
}

// A list filled by `make`, which returns a new reference for each element.
template <typename Make>
nb::object make_list(uint64_t count, Make make) {
  nb::object list = nb::steal(checked(PyList_New(static_cast<Py_ssize_t>(count))));
  for (uint64_t i = 0; i < count; ++i) PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), make());
  return list;
}

template <typename T>
PyObject* number_to_python(ByteReader& reader) {
  const T value = reader.read<T>("value");
  if constexpr (std::is_floating_point_v<T>) {
    return checked(PyFloat_FromDouble(static_cast<double>(value)));
  } else if constexpr (std::is_signed_v<T>) {
    return checked(PyLong_FromLongLong(value));
  } else {
    return checked(PyLong_FromUnsignedLongLong(value));
  }
}

nb::object array_to_python(ByteReader& reader) {
  const auto type = static_cast<GgufValueType>(reader.read<uint32_t>("value"));
  const auto count = reader.read<uint64_t>("value");
  switch (type) {
    case GgufValueType::kString:
      return make_list(count, [&] { return string_to_python(reader.read_string("value")); });
    case GgufValueType::kInt32:
      return make_list(count, [&] { return number_to_python<int32_t>(reader); });
    case GgufValueType::kFloat32:
      return make_list(count, [&] { return number_to_python<float>(reader); });
    default:
      return make_list(count, [&] { return to_python(reader, type).release().ptr(); });
  }
}

nb::object to_python(ByteReader& reader, GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
      return nb::steal(number_to_python<uint8_t>(reader));
    case GgufValueType::kInt8:
      return nb::steal(number_to_python<int8_t>(reader));
    case GgufValueType::kUint16:
      return nb::steal(number_to_python<uint16_t>(reader));
    case GgufValueType::kInt16:
      return nb::steal(number_to_python<int16_t>(reader));
    case GgufValueType::kUint32:
      return nb::steal(number_to_python<uint32_t>(reader));
    case GgufValueType::kInt32:
      return nb::steal(number_to_python<int32_t>(reader));
    case GgufValueType::kUint64:
      return nb::steal(number_to_python<uint64_t>(reader));
    case GgufValueType::kInt64:
      return nb::steal(number_to_python<int64_t>(reader));
    case GgufValueType::kFloat32:
      return nb::steal(number_to_python<float>(reader));
    case GgufValueType::kFloat64:
      return nb::steal(number_to_python<double>(reader));
    case GgufValueType::kBool:
      return nb::bool_(reader.read<uint8_t>("value") != 0);
    case GgufValueType::kString:
      return nb::steal(string_to_python(reader.read_string("value")));
    case GgufValueType::kArray:
      return array_to_python(reader);
  }
  throw Error(ErrorCode::kInternal, "a GGUF value of an unchecked type");
}

nb::dict metadata_to_python(const GgufFile& file) {
  nb::dict metadata;
  for (const GgufMetadataEntry& entry : file.metadata()) {
    ByteReader reader = entry.value.reader();
    metadata[nb::steal(string_to_python(entry.key))] = to_python(reader, entry.value.type);
  }
  return metadata;
}

// (name, shape, type name, type number, offset, bytes) of each tensor.
nb::list tensors_to_python(const GgufFile& file) {
  nb::list list;
  for (const TensorInfo& tensor : file.tensors()) {
    nb::list dims;
    for (int32_t i = 0; i < tensor.num_dims; ++i) dims.append(tensor.dims[static_cast<size_t>(i)]);
    list.append(nb::make_tuple(nb::steal(string_to_python(tensor.name)), nb::tuple(dims),
                               type_name(tensor.type), static_cast<uint32_t>(tensor.type), tensor.offset,
                               tensor.num_bytes));
  }
  return list;
}

using ByteView = nb::ndarray<nb::memview, const uint8_t, nb::ndim<1>>;

ByteView tensor_bytes(nb::handle self, const std::string& name) {
  const GgufFile& file = nb::cast<const GgufFile&>(self);
  const TensorInfo* tensor = file.find_tensor(name);
  if (tensor == nullptr) throw Error(ErrorCode::kInvalidArgument, "there is no tensor '" + name + "'");
  return ByteView(file.tensor_data(*tensor), {static_cast<size_t>(tensor->num_bytes)}, self);
}

ByteView file_bytes(nb::handle self) {
  const GgufFile& file = nb::cast<const GgufFile&>(self);
  return ByteView(file.bytes().data(), {file.bytes().size()}, self);
}

}  // namespace

void register_gguf(nb::module_& m) {
  nb::class_<GgufFile>(m, "GgufFile",
                       "A checked GGUF file, mapped read-only. Immutable; any thread may read it.")
      .def_static(
          "open",
          [](const nb::bytes& path) {
            const std::string native_path(path.c_str(), path.size());
            nb::gil_scoped_release unlocked;
            return GgufFile::open(native_path);
          },
          nb::arg("path"), "Maps and checks the file at an os.fsencode()d path; releases the GIL.")
      .def_prop_ro("size", &GgufFile::size)
      .def_prop_ro("version", &GgufFile::version)
      .def_prop_ro("alignment", &GgufFile::alignment)
      .def_prop_ro("data_offset", &GgufFile::data_offset)
      .def("metadata", &metadata_to_python, nb::sig("def metadata(self) -> dict[str, object]"),
           "A new dict of every key.")
      .def("tensors", &tensors_to_python,
           nb::sig("def tensors(self) -> list[tuple[str, tuple[int, ...], str, int, int, int]]"),
           "[(name, shape, type, type_id, offset, num_bytes)] in file order.")
      .def("tensor_bytes", &tensor_bytes, nb::arg("name"),
           nb::sig("def tensor_bytes(self, name: str) -> memoryview"),
           "The tensor's bytes as a read-only view of the file, which it keeps open.")
      .def("file_bytes", &file_bytes, nb::sig("def file_bytes(self) -> memoryview"),
           "All of the file as a read-only view, which keeps it open.")
      .def(
          "release",
          [](const GgufFile& file, uint64_t offset, uint64_t num_bytes) { file.release(offset, num_bytes); },
          nb::arg("offset"), nb::arg("num_bytes"),
          "Give the memory of a range back; reading it again takes it from the file.")
      .def_prop_ro(
          "stamp",
          [](const GgufFile& file) {
            const FileStamp stamp = file.stamp();
            return nb::make_tuple(stamp.inode, stamp.size, stamp.modified_ns, stamp.changed_ns);
          },
          nb::sig("def stamp(self) -> tuple[int, int, int, int]"),
          "(inode, size, modified_ns, changed_ns) of the mapped file as it is now.");
}

}  // namespace plait
