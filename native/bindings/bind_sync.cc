// Doorbells and rings of Python objects. The GIL is released only while a wait waits. Rings take and
// give references, so their calls hold the GIL; they are as quick as a list's.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/latency_histogram.h"
#include "bindings/bindings.h"
#include "parallel/messenger_thread.h"
#include "sync/doorbell.h"
#include "sync/mpsc_ring.h"
#include "sync/spsc_ring.h"

namespace plait {

namespace {

using namespace nb::literals;

// From seconds; too long for the type means no limit, which Doorbell spells -1.
int64_t to_ns(double seconds, const char* name) {
  if (std::isnan(seconds) || seconds < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " must be at least 0, got " + std::to_string(seconds));
  }
  return seconds < 9e9 ? static_cast<int64_t>(seconds * 1e9) : -1;
}

bool wait(Doorbell& bell, uint32_t seen, std::optional<double> timeout_s, double spin_s) {
  int64_t timeout_ns = timeout_s ? to_ns(*timeout_s, "timeout_s") : -1;
  const int64_t wanted_spin_ns = to_ns(spin_s, "spin_s");
  int64_t spin_ns = wanted_spin_ns < 0 ? std::numeric_limits<int64_t>::max() : wanted_spin_ns;
  if (bell.epoch() != seen) return true;
  if (timeout_ns == 0) return false;
  const int64_t begin_ns = monotonic_ns();
  const int64_t total_ns = timeout_ns;
  while (true) {
    Doorbell::Outcome outcome;
    {
      nb::gil_scoped_release release;
      outcome = bell.wait_interruptible(seen, timeout_ns, spin_ns);
    }
    if (outcome != Doorbell::Outcome::kInterrupted) return outcome == Doorbell::Outcome::kRung;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (total_ns >= 0) timeout_ns = std::max<int64_t>(total_ns - (monotonic_ns() - begin_ns), 0);
    spin_ns = 0;
  }
}

// A bounded ring of owned references. Every member needs the GIL, so that references can be counted.
template <template <typename> class Ring>
class ObjectRing {
 public:
  ObjectRing(size_t capacity, std::shared_ptr<Doorbell> doorbell)
      : ring_(capacity), doorbell_(std::move(doorbell)) {}

  bool try_push(nb::object object) {
    if (!ring_.try_push(std::move(object))) return false;
    if (doorbell_) doorbell_->ring();
    return true;
  }

  nb::object try_pop(nb::object fallback) {
    nb::object object;
    return ring_.try_pop(object) ? object : fallback;
  }

  // Looks before each sleep, so a message that came in between is not slept over.
  nb::object wait_pop(nb::object fallback, std::optional<double> timeout_s, double spin_s) {
    if (!doorbell_)
      throw Error(ErrorCode::kInvalidArgument, "a ring without a doorbell cannot be waited for");
    const int64_t timeout_ns = timeout_s ? to_ns(*timeout_s, "timeout_s") : -1;
    const int64_t until_ns = deadline_ns(monotonic_ns(), timeout_ns);
    nb::object object;
    while (true) {
      const uint32_t seen = doorbell_->epoch();
      if (ring_.try_pop(object)) return object;
      if (timeout_ns >= 0) timeout_s = std::max(static_cast<double>(until_ns - monotonic_ns()) * 1e-9, 0.0);
      if (!wait(*doorbell_, seen, timeout_s, spin_s)) return ring_.try_pop(object) ? object : fallback;
    }
  }

  nb::list pop_all(std::optional<int64_t> max) {
    if (max && *max < 0) {
      throw Error(ErrorCode::kInvalidArgument, "max must be at least 0, got " + std::to_string(*max));
    }
    // At most one ring full, so that a fast producer cannot hold the consumer here.
    const size_t limit = max && static_cast<size_t>(*max) < ring_.capacity() ? *max : ring_.capacity();
    nb::list objects;
    for (size_t i = 0; i < limit; ++i) {
      nb::object object;
      if (!ring_.try_pop(object)) break;
      objects.append(std::move(object));
    }
    return objects;
  }

  size_t size() const { return ring_.size(); }
  size_t capacity() const { return ring_.capacity(); }
  std::shared_ptr<Doorbell> doorbell() const { return doorbell_; }

 private:
  Ring<nb::object> ring_;
  std::shared_ptr<Doorbell> doorbell_;
};

template <template <typename> class Ring>
void register_ring(nb::module_& m, const char* name, const char* doc) {
  using Self = ObjectRing<Ring>;
  nb::class_<Self>(m, name, doc)
      .def(nb::init<size_t, std::shared_ptr<Doorbell>>(), nb::arg("capacity"),
           nb::arg("doorbell") = nb::none(),
           "Capacity is rounded up to a power of two. The doorbell, if any, is rung after every push.")
      .def("try_push", &Self::try_push, nb::arg("object").none(),
           "Append an object and ring the doorbell; False, and nothing happens, when the ring is full.")
      .def("try_pop", &Self::try_pop, nb::arg("default").none() = nb::none(),
           "Take the oldest object, or return `default` when the ring is empty.")
      .def("wait_pop", &Self::wait_pop, nb::arg("default").none() = nb::none(),
           nb::arg("timeout_s") = nb::none(), nb::arg("spin_s") = 0.0,
           "Take the oldest object; sleep on the doorbell while there is none, and return `default` after "
           "`timeout_s` (None: no limit). Releases the GIL while it waits. Raises NativeError for a ring "
           "without "
           "a doorbell.")
      .def("pop_all", &Self::pop_all, nb::arg("max") = nb::none(),
           nb::sig("def pop_all(self, max: int | None = None) -> list[object]"),
           "Take what is there, oldest first: at most `max` objects, and at most one ring full.")
      .def("__len__", &Self::size, "How many objects wait: a snapshot when others push or pop.")
      .def_prop_ro("capacity", &Self::capacity)
      .def_prop_ro("doorbell", &Self::doorbell);
}

}  // namespace

void register_sync(nb::module_& m) {
  m.def("favour_messenger_thread", &favour_messenger_thread, "off_cpu"_a = -1,
        "Let the calling thread have the CPU soon whenever it wakes, see native/parallel/messenger_thread.h. "
        "False where the kernel refuses.");
  nb::class_<RealtimeMessenger>(m, "RealtimeMessenger",
                                "Favours the calling thread, see native/parallel/messenger_thread.h.")
      .def(nb::init<int32_t>(), "off_cpu"_a = -1)
      .def("check", &RealtimeMessenger::check, "Whenever the thread wakes: a busy one gives the policy back.")
      .def_prop_ro("is_realtime", &RealtimeMessenger::is_realtime);
  nb::class_<LatencyHistogram>(m, "LatencyHistogram",
                               "How long something took, by size. One thread notes, any thread reads.")
      .def(nb::init<>())
      .def("note", &LatencyHistogram::note, "ns"_a)
      .def_prop_ro("count", &LatencyHistogram::count)
      .def_prop_ro("total_s", [](const LatencyHistogram& self) { return self.total_ns() * 1e-9; })
      .def_prop_ro("max_s", [](const LatencyHistogram& self) { return self.max_ns() * 1e-9; })
      .def(
          "count_within",
          [](const LatencyHistogram& self, double s) { return self.count_within(std::llround(s * 1e9)); },
          "seconds"_a, "Those of whole buckets that end at or below it.")
      .def(
          "quantile_s", [](const LatencyHistogram& self, double q) { return self.quantile_ns(q) * 1e-9; },
          "q"_a, "Upper end of the bucket of quantile q (0 to 1); 0 when nothing was noted.");
  nb::class_<Doorbell>(
      m, "Doorbell",
      "Wakes a sleeping thread. The waiter reads epoch(), looks at its queues, and waits with that "
      "epoch if they were empty; others push first and ring second. Native threads may share it.")
      .def(nb::new_([] { return std::make_shared<Doorbell>(); }))
      .def("ring", &Doorbell::ring,
           "Wake the waiter, or make its next wait return at once. Any thread; never blocks.")
      .def("epoch", &Doorbell::epoch, "The count of rings (modulo 2**32) to pass to wait().")
      .def("wait", &wait, nb::arg("seen"), nb::arg("timeout_s") = nb::none(), nb::arg("spin_s") = 0.0,
           "Wait until the epoch differs from `seen`: True then, False after `timeout_s` (None: no limit). "
           "Releases "
           "the GIL. Spins up to `spin_s` before it sleeps. Python's signal handlers run, and may raise.");
  register_ring<MpscRing>(
      m, "ObjectRing",
      "A bounded ring of objects: any thread pushes, one thread pops. Objects that are left when "
      "the ring dies are released.");
  register_ring<SpscRing>(
      m, "SpscObjectRing",
      "A bounded ring of objects: one thread pushes, one thread pops. Objects that are left when "
      "the ring dies are released.");
}

}  // namespace plait
