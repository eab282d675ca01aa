// Saving and fetching of KV blocks. No call waits for a copy or a disk, so all but the construction and the
// end hold the GIL; the threads that work know no Python.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "kv/kv_manager.h"
#include "runtime/kv_swap.h"

namespace plait {

namespace {

using namespace nb::literals;

void register_transfer(nb::module_& m) {
  nb::class_<KvTransfer>(m, "KvTransfer", "What became of one save or fetch.")
      .def_ro("ticket", &KvTransfer::ticket)
      .def_prop_ro("is_save", [](const KvTransfer& t) { return t.kind == KvTransferKind::kSave; })
      .def_ro("ok", &KvTransfer::ok)
      .def_ro("is_file", &KvTransfer::is_file, "The ticket lies in the file, not in memory.")
      .def_ro("error", &KvTransfer::error, "Why not ok: \"cancelled\" after drop, or what to log.")
      .def_ro("num_blocks", &KvTransfer::num_blocks, "Blocks copied.")
      .def_ro("num_bytes", &KvTransfer::num_bytes, "Bytes copied.")
      .def_ro("begin_ns", &KvTransfer::begin_ns, "When the work began, on the clock of time.monotonic_ns.")
      .def_ro("end_ns", &KvTransfer::end_ns);
}

nb::dict counters(const KvSwap& swap) {
  const KvSwapCounters totals = swap.counters();
  nb::dict dict;
  dict["num_saved_blocks"] = totals.num_saved_blocks;
  dict["num_saved_bytes"] = totals.num_saved_bytes;
  dict["num_fetched_blocks"] = totals.num_fetched_blocks;
  dict["num_fetched_bytes"] = totals.num_fetched_bytes;
  dict["num_failures"] = totals.num_failures;
  dict["ram_bytes_used"] = totals.ram_bytes_used;
  dict["file_bytes_used"] = totals.file_bytes_used;
  return dict;
}

}  // namespace

void register_kv_swap(nb::module_& m) {
  register_transfer(m);
  nb::class_<KvSwap>(
      m, "KvSwap",
      "Saves KV blocks to memory or a file and brings them back, on threads of its own. One thread calls "
      "everything but counters(). Nothing waits. The caller keeps its references to blocks of a save, and "
      "holds "
      "the blocks of a fetch alone, until the completion is popped. Wrong use raises NativeError "
      "(\"invalid_argument\", ...).")
      .def(
          "__init__",
          [](KvSwap* self, std::shared_ptr<KvStorage> storage, const KvManager& kv,
             std::shared_ptr<Doorbell> done_bell, int64_t ram_bytes, std::string dir, int64_t file_bytes) {
            new (self) KvSwap(std::move(storage), kv.versions(), {ram_bytes, std::move(dir), file_bytes},
                              std::move(done_bell));
          },
          "storage"_a, "kv"_a, "done_bell"_a, "ram_bytes"_a = 0, "dir"_a = "", "file_bytes"_a = 0,
          "Up to ram_bytes are kept in memory, then up to file_bytes (0: no bound) in a file without a name "
          "in "
          "`dir` (\"\": no file). Raises NativeError (\"system\", ...) when no file can be made there.")
      .def("try_save", &KvSwap::try_save, "ticket"_a, "snapshot"_a,
           "Begin to save what KvManager.capture gave. False, with nothing changed, when there is no room or "
           "too "
           "much is under way: compute it again instead.")
      .def("try_fetch", &KvSwap::try_fetch, "ticket"_a, "blocks"_a,
           "Begin to bring saved block i back into blocks[i]; -1 skips it. Only after every step has come "
           "back "
           "that was submitted before the blocks were granted. False when too much is under way: ask again.")
      .def("drop", &KvSwap::drop, "ticket"_a,
           "Forget a ticket. What is under way is cancelled and still completes, not ok; until then the "
           "number "
           "stays taken.")
      .def(
          "pop_transfers",
          [](KvSwap& swap) {
            std::vector<KvTransfer> transfers;
            KvTransfer transfer;
            while (swap.try_pop(transfer)) transfers.push_back(std::move(transfer));
            return transfers;
          },
          "What has completed since the last call, in the order of completion.")
      .def("is_saved", &KvSwap::is_saved, "ticket"_a,
           "The ticket is kept and no transfer of it is under way.")
      .def("has_room", &KvSwap::has_room, "num_blocks"_a, "try_save would take so many blocks now.")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"),
           "Totals since construction and what is kept now, by name. Any thread.")
      .def_prop_ro("last_error", &KvSwap::last_error,
                   "Why a transfer failed, lately; \"\": none has. Any thread.")
      .def_prop_ro("num_transfers", &KvSwap::num_transfers,
                   "Saves and fetches whose completion is not popped.");
}

}  // namespace plait
