// GMAC/s and GB/s of the matmul kernels on one thread, for the shapes of two small models.
// Usage: matmul_bench [type filter [isa [columns [tokens [rows]]]]] [hot]. isa: one name, "all" that run
// here, or "chosen" (the default; PLAIT_FORCE_ISA counts); 0 for columns, tokens, rows: all of them. The ISAs
// take turns at each shape. hot: one copy of the weights, which caches may keep. The last line is JSON.
#include <sys/mman.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/matmul/matmul_kernels.h"
#include "kernels/matmul/random_blocks.h"
#include "kernels/quantize/quantize.h"

namespace plait {
namespace {

struct Shape {
  int32_t rows;
  int32_t cols;
};
// SmolLM2-135M and Gemma3-270m; the wide ones are cut to what still exceeds every cache.
constexpr Shape kShapes[] = {{576, 576},  {192, 576},  {1536, 576}, {576, 1536},  {49152, 576},
                             {640, 1024}, {2048, 640}, {640, 2048}, {262144, 640}};
constexpr int32_t kBatches[] = {1, 2, 3, 4, 6, 8, 32, 512};
constexpr int32_t kRowsPerCall = 64;
int64_t cold_bytes = int64_t{192} << 20;  // weights walked per pass at T = 1, so that caches do not serve

// CPU time of this thread: other processes on the machine take the wall clock, not this.
double seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Huge pages where the system gives them, as weights have at run time.
class HugeBytes {
 public:
  explicit HugeBytes(size_t size)
      : room_(static_cast<std::byte*>(std::aligned_alloc(kPage, round_up(size)))) {
    madvise(room_, round_up(size), MADV_HUGEPAGE);
  }
  ~HugeBytes() { std::free(room_); }
  HugeBytes(const HugeBytes&) = delete;
  HugeBytes& operator=(const HugeBytes&) = delete;
  std::byte* data() { return room_; }

 private:
  static constexpr size_t kPage = size_t{2} << 20;
  static size_t round_up(size_t size) { return (size + kPage - 1) / kPage * kPage; }
  std::byte* room_;
};

void run(Isa isa, GgmlType type, Shape shape, int32_t num_tokens, std::string& json) {
  const size_t bytes = packed_num_bytes(type, shape.rows, shape.cols);
  // T = 1 reads copies of the matrix in turn: decode never finds its weights in a cache.
  const int64_t copies = num_tokens > 8 ? 1 : 1 + cold_bytes / static_cast<int64_t>(bytes);
  HugeBytes packed(bytes * static_cast<size_t>(copies));
  const std::vector<std::byte> file =
      random_blocks(type, int64_t{shape.rows} * shape.cols / block_shape(type).elements, 1);
  pack_rows(type, file.data(), shape.cols, 0, shape.rows, packed.data());
  for (int64_t i = 1; i < copies; ++i) {
    std::memcpy(packed.data() + static_cast<size_t>(i) * bytes, packed.data(), bytes);
  }
  AlignedBytes room(acts_q8_bytes(num_tokens, shape.cols));
  std::vector<float> x(static_cast<size_t>(num_tokens) * static_cast<size_t>(shape.cols));
  SplitMix64 random(2);
  for (float& v : x) v = random.uniform();
  const Acts acts{room.data(), x.data(), num_tokens, shape.cols};
  const Acts q8_only{room.data(), nullptr, num_tokens, shape.cols};
  for (int32_t t = 0; t < num_tokens; ++t)
    quantize_kernel(isa)(x.data() + int64_t{t} * shape.cols, t, 0, shape.cols, q8_only);
  std::vector<float> out(static_cast<size_t>(num_tokens) * kRowsPerCall);
  const MatmulFn matmul = matmul_kernel(isa);
  const double macs = double(shape.rows) * shape.cols * num_tokens;
  const double begin = seconds();
  double end = begin;
  int64_t passes = 0;
  while (end - begin < 0.25 || passes < copies) {
    const PackedMatrix w{packed.data() + static_cast<size_t>(passes % copies) * bytes, bytes, shape.rows,
                         shape.cols, packed_kind(type)};
    for (int32_t row = 0; row < shape.rows; row += kRowsPerCall) {
      matmul(w, acts, row, row + kRowsPerCall, 0, num_tokens, out.data(), kRowsPerCall);
    }
    ++passes;
    end = seconds();
    if (end - begin > 2.0) break;
  }
  const double per_pass = (end - begin) / static_cast<double>(passes);
  const double gmacs = macs / per_pass * 1e-9;
  const double gbytes = static_cast<double>(bytes) / per_pass * 1e-9;
  std::printf("%-6s %6d x %4d  T %3d  %-10s  %7.1f GMAC/s  %6.1f GB/s\n", type_name(type), shape.rows,
              shape.cols, num_tokens, isa_name(isa), gmacs, gbytes);
  char line[200];
  std::snprintf(line, sizeof line,
                "%s{\"type\":\"%s\",\"rows\":%d,\"cols\":%d,\"tokens\":%d,\"isa\":\"%s\",\"gmacs\":%.2f,"
                "\"gbytes\":%.2f}",
                json.empty() ? "" : ",", type_name(type), shape.rows, shape.cols, num_tokens, isa_name(isa),
                gmacs, gbytes);
  json += line;
}

std::vector<Isa> isas_of(const std::string& name) {
  if (name == "chosen") return {choose_isa().isa};
  std::vector<Isa> isas;
  for (const Isa isa : supported_isas()) {
    if (name == isa_name(isa) || name == "all") isas.push_back(isa);
  }
  return isas;
}

}  // namespace
}  // namespace plait

int main(int argc, char** argv) {
  using namespace plait;
  if (argc > 1 && std::strcmp(argv[argc - 1], "hot") == 0) {
    cold_bytes = 0;
    --argc;
  }
  const char* filter = argc > 1 ? argv[1] : "";
  const std::vector<Isa> isas = isas_of(argc > 2 ? argv[2] : "chosen");
  const int32_t only_cols = argc > 3 ? std::atoi(argv[3]) : 0;
  const int32_t only_tokens = argc > 4 ? std::atoi(argv[4]) : 0;
  const int32_t only_rows = argc > 5 ? std::atoi(argv[5]) : 0;
  if (isas.empty()) {
    std::fprintf(stderr, "matmul_bench: %s: not an instruction set that runs here\n", argv[2]);
    return 1;
  }
  std::string json;
  for (const GgmlType type : kAllGgmlTypes) {
    if (std::strstr(type_name(type), filter) == nullptr) continue;
    for (const Shape shape : kShapes) {
      if (shape.cols % block_shape(type).elements != 0) continue;
      if (only_cols != 0 && shape.cols != only_cols) continue;
      if (only_rows != 0 && shape.rows != only_rows) continue;
      for (const int32_t num_tokens : kBatches) {
        if (only_tokens != 0 && num_tokens != only_tokens) continue;
        for (const Isa isa : isas) run(isa, type, shape, num_tokens, json);
      }
    }
  }
  std::printf("{\"bench\":\"matmul\",\"results\":[%s]}\n", json.c_str());
  return 0;
}
