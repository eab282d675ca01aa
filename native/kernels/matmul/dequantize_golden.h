// Written by tools/gen_dequantize_golden.py: do not edit.
// FNV-1a of the float32 bytes, and the first values, of random_blocks(type, 40 blocks, seed = type).
#pragma once

#include <cstdint>

#include "base/ggml_type.h"

namespace plait {

inline constexpr int64_t kGoldenBlocks = 40;

struct DequantizeGolden {
  GgmlType type;
  uint64_t hash;
  float first[4];
};

// clang-format off
inline constexpr DequantizeGolden kDequantizeGolden[] = {
    {GgmlType::kQ4_0, 0x441f1760c4956692ULL, {-0x0.0p+0F, 0x1.2f98000000000p-1F, -0x1.a908000000000p-1F, -0x0.0p+0F}},
    {GgmlType::kQ4_1, 0xb3eaacf436525ae9ULL, {-0x1.5978000000000p-4F, -0x1.e780000000000p-7F, -0x1.e780000000000p-7F, -0x1.d760000000000p-6F}},
    {GgmlType::kQ5_0, 0xb5ae0e716c4ca2ccULL, {-0x1.944c000000000p-3F, 0x1.4370000000000p-5F, 0x1.7958000000000p-3F, 0x1.af40000000000p-4F}},
    {GgmlType::kQ5_1, 0xf8af3c669b26a718ULL, {0x1.2440000000000p-2F, 0x1.9f14000000000p-2F, 0x1.2fc0000000000p-3F, 0x1.0090000000000p-4F}},
    {GgmlType::kQ8_0, 0xb45b57c9d0329560ULL, {0x1.7160000000000p+2F, 0x1.12b9000000000p+3F, -0x1.2780000000000p+0F, -0x1.b6a2000000000p+2F}},
    {GgmlType::kQ2_K, 0xff4bf0eeb7df5129ULL, {0x1.5400000000000p-2F, 0x1.fe00000000000p-1F, 0x1.5400000000000p-2F, 0x1.fe00000000000p-1F}},
    {GgmlType::kQ3_K, 0xaf03a7cf2a2b35ffULL, {-0x1.3880000000000p+1F, 0x0.0p+0F, 0x1.3880000000000p-1F, 0x0.0p+0F}},
    {GgmlType::kQ4_K, 0xda59189005079ac3ULL, {-0x1.25a0000000000p+0F, -0x1.631e000000000p+1F, -0x1.279a000000000p+1F, -0x1.d82c000000000p+0F}},
    {GgmlType::kQ5_K, 0x72bb699ee0894023ULL, {-0x1.662c000000000p+1F, 0x1.ffb0000000000p-1F, -0x1.2a78000000000p-1F, 0x1.1ec1000000000p+2F}},
    {GgmlType::kQ6_K, 0x64febf3ccd2d0cb4ULL, {0x1.22af000000000p+3F, -0x1.b406800000000p+4F, -0x1.cc3fc00000000p+4F, -0x1.b406800000000p+3F}},
    {GgmlType::kIQ4_NL, 0xb75ad868a2657351ULL, {-0x1.0b65000000000p+1F, 0x1.be5c000000000p-1F, 0x1.a518000000000p-2F, 0x1.be5c000000000p-1F}},
    {GgmlType::kIQ4_XS, 0xc7a21f7b711cb6a0ULL, {-0x1.8399000000000p+5F, 0x1.38d8c00000000p+7F, 0x1.38d8c00000000p+7F, 0x1.1fee000000000p+4F}},
};
// clang-format on

}  // namespace plait
