// A hint to the CPU that this thread spins: saves power and lets an SMT sibling run.
#pragma once

namespace plait {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace plait
