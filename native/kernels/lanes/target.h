// Regions that are compiled for a wider instruction set than the rest of the program. A region holds only
// code of its own namespace: standard headers are included before it begins, so that no shared inline
// function is ever emitted with instructions that another CPU lacks.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#define PLAIT_HAS_AVX2 1
#if defined(__clang__)
#define PLAIT_AVX2_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c\"))), apply_to = function)")
#define PLAIT_AVX2_END _Pragma("clang attribute pop")
// One literal: clang joins none in a _Pragma.
// clang-format off
#define PLAIT_AVX512VNNI_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni\"))), apply_to = function)")
// clang-format on
#define PLAIT_AVX512VNNI_END _Pragma("clang attribute pop")
#else
#define PLAIT_AVX2_BEGIN _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c\")")
#define PLAIT_AVX2_END _Pragma("GCC pop_options")
#define PLAIT_AVX512VNNI_BEGIN \
  _Pragma("GCC push_options")  \
      _Pragma("GCC target(\"avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni\")")
#define PLAIT_AVX512VNNI_END _Pragma("GCC pop_options")
#endif
#else
#define PLAIT_HAS_AVX2 0
#endif

// Every aarch64 CPU has NEON, fused multiply-add and the f16 conversions: a region is needed for the dot
// product instructions only. (GCC's vdotq_s32 wants the whole of armv8.2-a in its caller.)
#if defined(__aarch64__)
#include <arm_neon.h>

#define PLAIT_HAS_NEON 1
#if defined(__clang__)
#define PLAIT_DOTPROD_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"dotprod\"))), apply_to = function)")
#define PLAIT_DOTPROD_END _Pragma("clang attribute pop")
#else
#define PLAIT_DOTPROD_BEGIN _Pragma("GCC push_options") _Pragma("GCC target(\"arch=armv8.2-a+dotprod\")")
#define PLAIT_DOTPROD_END _Pragma("GCC pop_options")
#endif
#else
#define PLAIT_HAS_NEON 0
#endif

// Before a loop with a constant number of turns over an array that should stay in registers: GCC unrolls it
// too late for that by itself.
#if defined(__clang__)
#define PLAIT_UNROLL _Pragma("unroll")
#else
#define PLAIT_UNROLL _Pragma("GCC unroll 16")
#endif
