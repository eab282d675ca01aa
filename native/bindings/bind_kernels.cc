// The instruction sets, and single kernels on plain bytes: for tests, which hold one against another.
// Arguments are checked; calls are short and keep the GIL.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "bindings/bindings.h"
#include "kernels/kernel_table.h"

namespace plait {

namespace {

using namespace nb::literals;

void require(bool is_right, const char* what) {
  if (!is_right) throw Error(ErrorCode::kInvalidArgument, what);
}

GgmlType type_of(const std::string& name) {
  for (const GgmlType type : kAllGgmlTypes) {
    if (name == type_name(type)) return type;
  }
  throw Error(ErrorCode::kInvalidArgument, "unknown tensor type " + name);
}

// A copy, which is aligned as floats must be.
std::vector<float> floats_of(const nb::bytes& bytes) {
  require(bytes.size() % sizeof(float) == 0, "not a whole number of float32");
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.c_str(), bytes.size());
  return values;
}

nb::bytes bytes_of(const std::vector<float>& values) {
  return nb::bytes(values.data(), values.size() * sizeof(float));
}

size_t size_of(int64_t rows, int64_t cols) { return static_cast<size_t>(rows * cols); }

constexpr int32_t kMaxSize = 1 << 20;

void require_sizes(int32_t num_tokens, int32_t cols) {
  require(num_tokens > 0 && num_tokens <= kMaxSize && cols > 0 && cols <= kMaxSize && cols % kBlock == 0,
          "tokens and columns must be positive, columns whole blocks of 32");
}

nb::bytes quantize(const std::string& isa, const nb::bytes& x_bytes, int32_t num_tokens, int32_t cols) {
  require_sizes(num_tokens, cols);
  const std::vector<float> x = floats_of(x_bytes);
  require(x.size() == size_of(num_tokens, cols), "x must be [num_tokens][cols]");
  const Memory q8(acts_q8_bytes(num_tokens, cols));
  const Acts acts{q8.data(), nullptr, num_tokens, cols};
  const QuantizeFn kernel = quantize_kernel(isa_of(isa));
  for (int32_t t = 0; t < num_tokens; ++t) kernel(x.data() + int64_t{t} * cols, t, 0, cols, acts);
  return nb::bytes(q8.data(), q8.size());
}

nb::bytes matmul(const std::string& isa_name, const std::string& type_name, const nb::bytes& weights,
                 int32_t rows, const nb::bytes& x_bytes, int32_t cols,
                 const std::pair<int32_t, int32_t>& row_range,
                 const std::pair<int32_t, int32_t>& token_range) {
  const Isa isa = isa_of(isa_name);
  const GgmlType type = type_of(type_name);
  std::vector<float> x = floats_of(x_bytes);
  require(rows > 0 && rows <= kMaxSize, "rows must be positive");
  require_sizes(1, cols);
  require(x.size() % static_cast<size_t>(cols) == 0 && x.size() <= static_cast<size_t>(kMaxSize) * kBlock,
          "x must be [num_tokens][cols]");
  const auto num_tokens = static_cast<int32_t>(x.size() / static_cast<size_t>(cols));
  const auto [row0, row1] = row_range;
  const auto [t0, t1] = token_range;
  require(row0 >= 0 && row0 < row1 && row1 <= rows && row0 % kRowGroup == 0 && row1 % kRowGroup == 0,
          "rows must be a range of whole groups of 8");
  require(t0 >= 0 && t0 < t1 && t1 <= num_tokens && t0 % kTileTokens == 0,
          "tokens must be a range that begins with a tile of 8");
  const size_t num_bytes = packed_num_bytes(type, rows, cols);
  const BlockShape block = block_shape(type);
  require(weights.size() ==
              size_of(rows, cols) / static_cast<size_t>(block.elements) * static_cast<size_t>(block.bytes),
          "weights must be [rows][cols] of the type");
  const Memory packed(num_bytes);
  pack_rows(type, static_cast<const std::byte*>(weights.data()), cols, 0, rows, packed.data());
  const PackedMatrix matrix{packed.data(), num_bytes, rows, cols, packed_kind(type)};
  const Memory q8(acts_q8_bytes(num_tokens, cols));
  const QuantizeFn quantize_row = quantize_kernel(isa);
  for (int32_t t = 0; t < num_tokens; ++t) {
    quantize_row(x.data() + int64_t{t} * cols, t, 0, cols, {q8.data(), nullptr, num_tokens, cols});
  }
  std::vector<float> out(size_of(t1 - t0, row1 - row0));
  matmul_kernel(isa)(matrix, {q8.data(), x.data(), num_tokens, cols}, row0, row1, t0, t1, out.data(),
                     row1 - row0);
  return bytes_of(out);
}

nb::bytes dequantize(const std::string& type_name, const nb::bytes& weights) {
  const GgmlType type = type_of(type_name);
  const BlockShape block = block_shape(type);
  require(weights.size() % static_cast<size_t>(block.bytes) == 0, "weights must be whole blocks");
  std::vector<float> out(weights.size() / static_cast<size_t>(block.bytes) *
                         static_cast<size_t>(block.elements));
  dequantize_row(type, static_cast<const std::byte*>(weights.data()), static_cast<int64_t>(out.size()),
                 out.data());
  return bytes_of(out);
}

nb::bytes rms_norm(const std::string& isa, const nb::bytes& x_bytes, const nb::bytes& weight_bytes,
                   float eps) {
  std::vector<float> x = floats_of(x_bytes);
  const std::vector<float> weight = floats_of(weight_bytes);
  require(!x.empty() && x.size() == weight.size() && x.size() % 16 == 0, "x and weight must be [16 n]");
  rms_norm_kernel(isa_of(isa))(x.data(), weight.data(), eps, static_cast<int32_t>(x.size()), x.data());
  return bytes_of(x);
}

nb::bytes add(const std::string& isa, const nb::bytes& x_bytes, const nb::bytes& delta_bytes) {
  std::vector<float> x = floats_of(x_bytes);
  const std::vector<float> delta = floats_of(delta_bytes);
  require(!x.empty() && x.size() == delta.size() && x.size() % 16 == 0, "x and delta must be [16 n]");
  add_kernel(isa_of(isa))(x.data(), delta.data(), static_cast<int32_t>(x.size()));
  return bytes_of(x);
}

nb::bytes rope(const std::string& isa, const nb::bytes& x_bytes, const nb::bytes& cos_bytes,
               const nb::bytes& sin_bytes, const std::string& style) {
  std::vector<float> x = floats_of(x_bytes);
  const std::vector<float> cos = floats_of(cos_bytes);
  const std::vector<float> sin = floats_of(sin_bytes);
  require(style == "half" || style == "interleaved", "unknown rope style");
  require(!cos.empty() && cos.size() == sin.size() && 2 * cos.size() <= x.size(),
          "cos and sin must be halves of what is rotated");
  rope_kernel(isa_of(isa))(x.data(), static_cast<int32_t>(2 * cos.size()), cos.data(), sin.data(),
                           style == "half" ? RopeStyle::kHalf : RopeStyle::kInterleaved);
  return bytes_of(x);
}

nb::bytes gated_act(const std::string& isa, const nb::bytes& gate_bytes, const nb::bytes& up_bytes,
                    const std::string& activation) {
  std::vector<float> gate = floats_of(gate_bytes);
  const std::vector<float> up = floats_of(up_bytes);
  require(activation == "silu" || activation == "gelu_tanh", "unknown activation");
  require(!gate.empty() && gate.size() == up.size() && gate.size() % 8 == 0, "gate and up must be [8 n]");
  gated_act_kernel(isa_of(isa))(gate.data(), up.data(), static_cast<int32_t>(gate.size()),
                                activation == "silu" ? Activation::kSilu : Activation::kGeluTanh,
                                gate.data());
  return bytes_of(gate);
}

struct AttentionCase {
  KvLayout layout;
  std::vector<float> q, k, v;
  std::vector<int32_t> block_table;
  int32_t group = 1;
  int32_t num_queries = 0;
  int32_t context = 0;
};

// q [queries][kv heads * group][head_dim] of the last positions; k, v [context][kv heads][head_dim].
AttentionCase attention_case(const KvLayout& layout, const nb::bytes& q, const nb::bytes& k,
                             const nb::bytes& v, std::vector<int32_t> block_table, int32_t group) {
  require(layout.num_layers > 0 && layout.num_kv_heads > 0 && layout.head_dim > 0 &&
              layout.head_dim % 16 == 0 && layout.block_tokens > 0 && layout.block_tokens % 16 == 0 &&
              kPartition % layout.block_tokens == 0 && group > 0,
          "sizes that the attention kernels do not take");
  AttentionCase c{layout, floats_of(q), floats_of(k), floats_of(v), std::move(block_table), group, 0, 0};
  const size_t row = size_of(layout.num_kv_heads, layout.head_dim);
  const size_t query = row * static_cast<size_t>(group);
  require(c.k.size() % row == 0 && c.k.size() == c.v.size() && c.q.size() % query == 0,
          "q, k and v must be whole positions");
  c.context = static_cast<int32_t>(c.k.size() / row);
  c.num_queries = static_cast<int32_t>(c.q.size() / query);
  require(c.num_queries > 0 && c.num_queries <= c.context, "there must be 1 to `context` queries");
  const auto num_blocks = static_cast<size_t>((c.context + layout.block_tokens - 1) / layout.block_tokens);
  require(c.block_table.size() == num_blocks, "one block for each block_tokens positions");
  for (const int32_t block : c.block_table) require(block >= 0 && block < kMaxSize, "blocks out of range");
  return c;
}

// Into the last layer, so that other layers would show. Split: by partitions that are merged; one query only.
nb::bytes attention(const std::string& isa_name, const KvLayout& layout, const nb::bytes& q,
                    const nb::bytes& k, const nb::bytes& v, std::vector<int32_t> block_table, int32_t group,
                    int32_t window, float scale, float softcap, bool is_split) {
  AttentionCase c = attention_case(layout, q, k, v, std::move(block_table), group);
  require(window >= 0 && (!is_split || c.num_queries == 1), "only one query can be split");
  const KernelTable& kernels = kernel_table(isa_of(isa_name));
  const int32_t layer = layout.num_layers - 1;
  const int32_t num_blocks = *std::max_element(c.block_table.begin(), c.block_table.end()) + 1;
  const Memory pool(layout.block_bytes() * static_cast<size_t>(num_blocks));
  for (int32_t p = 0; p < c.context; ++p) {
    const auto block = static_cast<size_t>(c.block_table[static_cast<size_t>(p / layout.block_tokens)]);
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      const size_t at = size_of(int64_t{p} * layout.num_kv_heads + head, layout.head_dim);
      kernels.kv_write(layout, pool.data() + block * layout.block_bytes(), layer, head,
                       p % layout.block_tokens, c.k.data() + at, c.v.data() + at);
    }
  }
  const Memory scratch(attention_scratch_bytes(layout, group, kMaxQueriesPerTask));
  std::vector<float> out(c.q.size());
  const int64_t group_cols = int64_t{group} * layout.head_dim;
  for (int32_t first = 0; first < c.num_queries; first += kMaxQueriesPerTask) {
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      AttentionArgs args;
      args.layout = &layout;
      args.pool = pool.data();
      args.block_table = c.block_table.data();
      args.layer = layer;
      args.kv_head = head;
      args.group = group;
      args.q_stride = args.out_stride = layout.num_kv_heads * group_cols;
      args.q = c.q.data() + first * args.q_stride + head * group_cols;
      args.out = out.data() + first * args.q_stride + head * group_cols;
      args.num_queries = std::min(kMaxQueriesPerTask, c.num_queries - first);
      args.position0 = c.context - c.num_queries + first;
      args.window = window;
      args.scale = scale;
      args.softcap = softcap;
      args.scratch = scratch.data();
      if (!is_split) {
        kernels.attention(args);
        continue;
      }
      const int32_t num_partials = (c.context + kPartition - 1) / kPartition;
      const size_t partial_size = size_of(group, 2 + layout.head_dim);
      std::vector<float> partials(partial_size * static_cast<size_t>(num_partials));
      for (int32_t p = 0; p < num_partials; ++p) {
        kernels.attention_partial(args, p, partials.data() + partial_size * static_cast<size_t>(p));
      }
      kernels.attention_merge(partials.data(), num_partials, group, layout.head_dim, args.out);
    }
  }
  return bytes_of(out);
}

}  // namespace

void register_kernels(nb::module_& m) {
  m.def(
      "choose_isa",
      [] {
        IsaChoice choice = choose_isa();
        return std::pair<std::string, std::string>(isa_name(choice.isa), choice.reason);
      },
      "(name, reason) of the instruction set to use; PLAIT_FORCE_ISA forces one. Raises NativeError when it "
      "cannot run.");
  m.def(
      "supported_isas",
      [] {
        std::vector<std::string> names;
        for (const Isa isa : supported_isas()) names.emplace_back(isa_name(isa));
        return names;
      },
      "Those that can run here; \"scalar\" is the first, the widest the last.");
  m.def("kernel_quantize", &quantize, "isa"_a, "x"_a, "num_tokens"_a, "cols"_a,
        "The 8-bit layout of x [num_tokens][cols].");
  m.def("kernel_matmul", &matmul, "isa"_a, "type"_a, "weights"_a, "rows"_a, "x"_a, "cols"_a, "row_range"_a,
        "token_range"_a, "Packs file bytes [rows][cols] and multiplies a range of them: [tokens][rows].");
  m.def("kernel_dequantize", &dequantize, "type"_a, "weights"_a, "File bytes as float32.");
  m.def("kernel_rms_norm", &rms_norm, "isa"_a, "x"_a, "weight"_a, "eps"_a);
  m.def("kernel_add", &add, "isa"_a, "x"_a, "delta"_a);
  m.def("kernel_rope", &rope, "isa"_a, "x"_a, "cos"_a, "sin"_a, "style"_a);
  m.def("kernel_gated_act", &gated_act, "isa"_a, "gate"_a, "up"_a, "activation"_a);
  m.def("kernel_attention", &attention, "isa"_a, "layout"_a, "q"_a, "k"_a, "v"_a, "block_table"_a, "group"_a,
        "window"_a, "scale"_a, "softcap"_a, "is_split"_a,
        "Writes k, v [context][kv heads][head_dim] to the blocks and attends with the queries of the last "
        "positions, [queries][heads][head_dim].");
}

}  // namespace plait
