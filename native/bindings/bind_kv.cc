// The KV manager. Calls take microseconds and hold the GIL, except for long token lists (see kLongTokens).
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/block_table.h"
#include "kv/kv_manager.h"

namespace plait {

namespace {

// Hashing this many tokens takes some 200 us. Below, giving the GIL away costs more than it brings: another
// thread may keep it for milliseconds.
constexpr size_t kLongTokens = 4096;

using Tokens = std::vector<int32_t>;

std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

int32_t open_sequence(KvManager& kv, int64_t seq_id, const Tokens& token_ids, const nb::bytes& salt,
                      bool use_cache) {
  std::optional<nb::gil_scoped_release> release;
  const std::string_view salt_view = view(salt);
  if (token_ids.size() > kLongTokens) release.emplace();
  return kv.open_sequence(seq_id, token_ids, salt_view, use_cache);
}

void commit(KvManager& kv, int64_t seq_id, const Tokens& token_ids) {
  std::optional<nb::gil_scoped_release> release;
  if (token_ids.size() > kLongTokens) release.emplace();
  kv.commit(seq_id, token_ids);
}

Tokens block_table(const KvManager& kv, int64_t seq_id) {
  const auto blocks = kv.block_table(seq_id);
  return {blocks.begin(), blocks.end()};
}

std::vector<std::pair<int32_t, int32_t>> take_copies(KvManager& kv) {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (const BlockCopy& copy : kv.take_copies()) pairs.emplace_back(copy.src, copy.dst);
  return pairs;
}

nb::dict counters(const KvManager& kv) {
  const KvCounters& totals = kv.counters();
  nb::dict dict;
  dict["num_lookup_tokens"] = totals.num_lookup_tokens;
  dict["num_hit_tokens"] = totals.num_hit_tokens;
  dict["num_evictions"] = totals.num_evictions;
  dict["num_copies"] = totals.num_copies;
  dict["num_merged_blocks"] = totals.num_merged_blocks;
  dict["num_versions"] = totals.num_versions;
  return dict;
}

std::pair<int64_t, int32_t> pin_prefix(KvManager& kv, const Tokens& token_ids, const nb::bytes& salt) {
  std::optional<nb::gil_scoped_release> release;
  const std::string_view salt_view = view(salt);
  if (token_ids.size() > kLongTokens) release.emplace();
  const PinnedPrefix pinned = kv.pin_prefix(token_ids, salt_view);
  return {pinned.handle, pinned.num_tokens};
}

void register_snapshot(nb::module_& m) {
  nb::class_<BlockSnapshot>(
      m, "BlockSnapshot", "Blocks with complete content and their versions. Immutable; holds no references.")
      .def_ro("blocks", &BlockSnapshot::blocks)
      .def_ro("versions", &BlockSnapshot::versions)
      .def_ro("num_tokens", &BlockSnapshot::num_tokens, "Positions of the sequence that they hold, from 0.");
}

void register_block_table(nb::module_& m) {
  nb::class_<BlockTableHandle>(m, "BlockTable", "An immutable block table of one sequence.")
      .def("__len__", [](const BlockTableHandle& self) { return self.blocks->size(); })
      .def(
          "__getitem__",
          [](const BlockTableHandle& self, Py_ssize_t idx) {
            const auto num_blocks = static_cast<Py_ssize_t>(self.blocks->size());
            if (idx < 0) idx += num_blocks;
            if (idx < 0 || idx >= num_blocks) throw nb::index_error("block index out of range");
            return (*self.blocks)[idx];
          },
          nb::arg("idx"))
      .def("to_list", [](const BlockTableHandle& self) { return *self.blocks; });
}

}  // namespace

void register_kv(nb::module_& m) {
  register_block_table(m);
  register_snapshot(m);
  nb::class_<KvManager> kv(
      m, "KvManager",
      "Which block holds which position of which sequence, and the prefix cache. One thread "
      "calls everything. Wrong use raises NativeError (\"invalid_argument\", ...).");
  kv.def(
        "__init__",
        [](KvManager* self, int32_t num_blocks, int32_t block_tokens, const nb::bytes& model_id) {
          new (self) KvManager(num_blocks, block_tokens, std::string(view(model_id)));
        },
        nb::arg("num_blocks"), nb::arg("block_tokens"), nb::arg("model_id"))
      .def("open_sequence", &open_sequence, nb::arg("seq_id"), nb::arg("token_ids"),
           nb::arg("salt") = nb::bytes("", 0), nb::arg("use_cache") = true,
           "Open a sequence for a prompt and return how many of its first tokens are cached: full blocks, "
           "never the "
           "whole prompt. They count as committed. `salt` separates tenants. Without use_cache the sequence "
           "neither "
           "takes from the cache nor publishes to it. Releases the GIL for more than 4096 tokens.")
      .def("try_grow", &KvManager::try_grow, nb::arg("seq_id"), nb::arg("num_tokens"),
           nb::arg("first_write") = KvManager::kFromCommitted,
           "Make room for positions 0..num_tokens and allow writing of first_write..num_tokens (default: "
           "from the "
           "first position not committed). False, with nothing changed, when blocks are short even after "
           "eviction. "
           "Shared blocks in the written range are replaced by own ones: see take_copies. Pass first_write "
           "when a "
           "step is planned while the one before it is in flight.")
      .def("fork", &KvManager::fork, nb::arg("parent_id"), nb::arg("child_id"),
           "Open a second sequence that shares all blocks of the first, those in flight included.")
      .def("commit", &commit, nb::arg("seq_id"), nb::arg("token_ids"),
           "The next positions are computed and hold these tokens; blocks that get full are published. May "
           "replace "
           "an own block by an equal published one. Releases the GIL for more than 4096 tokens.")
      .def("close_sequence", &KvManager::close_sequence, nb::arg("seq_id"),
           "Give all blocks back; published ones stay in the cache until evicted.")
      .def("block_table", &block_table, nb::arg("seq_id"), "The sequence's blocks, as a new list.")
      .def(
          "snapshot", [](KvManager& self, int64_t seq_id) { return BlockTableHandle{self.snapshot(seq_id)}; },
          nb::arg("seq_id"), "The sequence's blocks, immutable and without copying.")
      .def("capture", &KvManager::capture, nb::arg("seq_id"),
           "The sequence's blocks whose content is complete, with versions: full ones, and the last one "
           "unless "
           "positions after the committed ones are granted.")
      .def("take_copies", &take_copies,
           "Block copies (src, dst) due since the last call, to be done in this order before the next step "
           "writes.")
      .def("reset_cache", &KvManager::reset_cache,
           "Forget all cached content, pinned too. Open sequences keep running and no longer publish.")
      .def(
          "pin_prefix", &pin_prefix, nb::arg("token_ids"), nb::arg("salt") = nb::bytes("", 0),
          "Keep the published full blocks at the start of token_ids from eviction: (handle, number of tokens "
          "kept). Raises NativeError (\"invalid_argument\", ...) when none is published or more than "
          "max_pinned_blocks would be kept. Releases the GIL for more than 4096 tokens.")
      .def("unpin", &KvManager::unpin, nb::arg("handle"), "Let a pinned prefix go.");
  kv.def("has_sequence", &KvManager::has_sequence, nb::arg("seq_id"))
      .def("num_committed", &KvManager::num_committed, nb::arg("seq_id"))
      .def("num_refs", &KvManager::num_refs, nb::arg("block"))
      .def("block_version", &KvManager::block_version, nb::arg("block"),
           "Raised by every write grant. Any thread.")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"),
           "Totals since construction, by name.")
      .def("check_consistency", &KvManager::check_consistency,
           "Recount everything; raises on a contradiction.")
      .def_prop_ro("num_blocks", &KvManager::num_blocks)
      .def_prop_ro("block_tokens", &KvManager::block_tokens)
      .def_prop_ro("num_sequences", &KvManager::num_sequences)
      .def_prop_ro("num_free_blocks", &KvManager::num_free_blocks, "Free and evictable blocks.")
      .def_prop_ro("num_pinned_blocks", &KvManager::num_pinned_blocks)
      .def_prop_ro("max_pinned_blocks", &KvManager::max_pinned_blocks,
                   "How many blocks pins may keep; the others are always left to sequences.")
      .def_prop_ro("num_cached_blocks", &KvManager::num_cached_blocks,
                   "Evictable blocks: kept for a later prompt.");
}

}  // namespace plait
