// Huge pages behind mapped memory. Knows: what the kernel tells and what can be asked of it.
// Must not know: what the memory is for.
#pragma once

#include <cstddef>
#include <span>

namespace plait {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// How much of `memory`, which is mapped, this process reaches through huge pages now. 0 when the kernel does
// not tell. Takes about a millisecond.
size_t num_huge_bytes(std::span<const std::byte> memory);

// Whether the kernel gives huge pages of this size to memory that asks for them (madvise). Kernels with
// larger pages have huge pages that few files could fill.
bool are_huge_pages_enabled();

// Asks the kernel to gather `memory`, all of which is present, into huge pages now; it may refuse (before
// Linux 6.1, and most file systems but tmpfs). Blocks for the copying.
void try_collapse(std::span<const std::byte> memory);

}  // namespace plait
