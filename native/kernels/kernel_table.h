// The kernels of one ISA, chosen once at start; the plan resolves the pointers when it is built.
#pragma once

#include "cpu/isa.h"
#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul_kernels.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"
#include "kernels/rope/rope.h"

namespace plait {

struct KernelTable {
  Isa isa;
  MatmulFn matmul;
  QuantizeFn quantize;
  RmsNormFn rms_norm;
  AddFn add;
  RopeFn rope;
  GatedActFn gated_act;
  KvWriteFn kv_write;
  AttentionFn attention;
  AttentionPartialFn attention_partial;
  AttentionMergeFn attention_merge;
};

// The table of `isa`, which must be supported (cpu/isa.h).
const KernelTable& kernel_table(Isa isa);

}  // namespace plait
