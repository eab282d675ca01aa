#include "kernels/kernel_table.h"

#include <vector>

namespace plait {

namespace {

KernelTable make_table(Isa isa) {
  return {
      .isa = isa,
      .matmul = matmul_kernel(isa),
      .quantize = quantize_kernel(isa),
      .rms_norm = rms_norm_kernel(isa),
      .add = add_kernel(isa),
      .rope = rope_kernel(isa),
      .gated_act = gated_act_kernel(isa),
      .kv_write = kv_write_kernel(isa),
      .attention = attention_kernel(isa),
      .attention_partial = attention_partial_kernel(isa),
      .attention_merge = attention_merge_kernel(isa),
  };
}

}  // namespace

const KernelTable& kernel_table(Isa isa) {
  static const std::vector<KernelTable> tables = [] {
    std::vector<KernelTable> all;
    for (const Isa each : kAllIsas) all.push_back(make_table(each));
    return all;
  }();
  return tables[static_cast<size_t>(isa)];
}

}  // namespace plait
