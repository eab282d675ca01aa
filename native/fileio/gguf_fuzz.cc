// libFuzzer target: any bytes either parse, and then every view can be read, or throw plait::Error.
#include <cstdlib>

#include "fileio/gguf.h"

namespace {

volatile uint64_t sink = 0;

// Reads each byte that the file's views promise; the sanitizer sees one that is not there.
uint64_t read_everything(const plait::GgufFile& file) {
  uint64_t sum = 0;
  for (const plait::GgufMetadataEntry& entry : file.metadata()) {
    if (file.find_value(entry.key) != &entry.value) std::abort();
    for (uint64_t i = 0; i < entry.value.num_bytes; ++i)
      sum += std::to_integer<uint64_t>(entry.value.data[i]);
    sum += static_cast<uint64_t>(entry.value.as_int().value_or(0) != 0);
    sum += static_cast<uint64_t>(entry.value.as_float().value_or(0) != 0);
    sum += static_cast<uint64_t>(entry.value.as_bool().value_or(false));
    sum += entry.value.as_string().value_or("").size();
  }
  uint64_t data_bytes = 0;
  for (const plait::TensorInfo& tensor : file.tensors()) {
    if (file.find_tensor(tensor.name) != &tensor) std::abort();
    if (tensor.offset % file.alignment() != file.data_offset() % file.alignment()) std::abort();
    const std::byte* data = file.tensor_data(tensor);
    for (uint64_t i = 0; i < tensor.num_bytes; ++i) sum += std::to_integer<uint64_t>(data[i]);
    data_bytes += tensor.num_bytes;
  }
  if (data_bytes > file.size()) std::abort();  // only overlapping tensors could sum to more
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const plait::GgufFile file = plait::GgufFile::parse({reinterpret_cast<const std::byte*>(data), size});
    sink = read_everything(file);  // so that the reads are not optimised away
  } catch (const plait::Error&) {
    // The only way to refuse.
  }
  return 0;
}
