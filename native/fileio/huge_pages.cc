#include "fileio/huge_pages.h"

#include <sys/mman.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace plait {

size_t num_huge_bytes(std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t end = begin + memory.size();
  std::ifstream file("/proc/self/smaps");
  std::string line;
  bool is_inside = false;
  size_t total_kib = 0;
  while (std::getline(file, line)) {
    uintptr_t first = 0, last = 0;
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &first, &last) == 2) {
      if (first >= end) break;  // the mappings come in rising order
      is_inside = first >= begin;
    } else if (is_inside && (std::sscanf(line.c_str(), "FilePmdMapped: %zu", &kib) == 1 ||
                             std::sscanf(line.c_str(), "ShmemPmdMapped: %zu", &kib) == 1 ||
                             std::sscanf(line.c_str(), "AnonHugePages: %zu", &kib) == 1)) {
      total_kib += kib;
    }
  }
  return total_kib * 1024;
}

bool are_huge_pages_enabled() {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  std::ifstream mode(folder + "enabled");
  std::ifstream size(folder + "hpage_pmd_size");
  std::string line;
  size_t num_bytes = 0;
  return std::getline(mode, line) && line.find("[never]") == std::string::npos && size >> num_bytes &&
         num_bytes == kHugePageBytes;
}

void try_collapse(std::span<const std::byte> memory) {
  ::madvise(const_cast<std::byte*>(memory.data()), memory.size(), MADV_COLLAPSE);
}

}  // namespace plait
