"""Says what a trace of plait (`--trace FILE`) shows: how busy each thread was, and with what.

usage: read_trace.py FILE [--begin SECONDS] [--end SECONDS]

Seconds count from the begin of the trace. Without --begin the window starts when the engine was ready.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    begin_ns: int
    end_ns: int
    args: dict[str, int]

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.begin_ns


@dataclass(slots=True)
class Lane:
    """One thread. Events are in the order of their begin, outer ones first."""

    name: str
    events: list[Event] = field(default_factory=list)
    marks: list[Event] = field(default_factory=list)

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


@dataclass(frozen=True, slots=True)
class TraceContent:
    lanes: dict[str, list[Lane]]
    """By name of the thread; several threads may have the same name."""
    start_monotonic_ns: int
    """time.monotonic_ns() when the trace began, which all times in it are relative to."""
    num_dropped_events: int

    def lane(self, name: str) -> Lane:
        (lane,) = self.lanes[name]
        return lane

    def all_lanes(self) -> Iterable[Lane]:
        return (lane for lanes in self.lanes.values() for lane in lanes)

    @property
    def ready_ns(self) -> int:
        """When the engine was ready; 0 when the trace does not say."""
        return min(
            (m.begin_ns for lane in self.all_lanes() for m in lane.marks if m.name == "ready"), default=0
        )

    @property
    def end_ns(self) -> int:
        return max((event.end_ns for lane in self.all_lanes() for event in lane.events), default=0)


def to_ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def read_trace(path: Path) -> TraceContent:
    """Raises ValueError for a file that is no such trace."""
    document = json.loads(path.read_text(encoding="ascii"))
    by_thread: dict[int, Lane] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "thread_name":
            by_thread[event["tid"]] = Lane(event["args"]["name"])
    for event in document["traceEvents"]:
        if event["ph"] not in ("X", "i"):
            continue
        begin_ns = to_ns(event["ts"])
        end_ns = begin_ns + to_ns(event.get("dur", 0))
        lane = by_thread[event["tid"]]
        known = lane.events if event["ph"] == "X" else lane.marks
        known.append(Event(event["name"], begin_ns, end_ns, event.get("args", {})))
    lanes: dict[str, list[Lane]] = defaultdict(list)
    for lane in by_thread.values():
        lane.events.sort(key=lambda event: (event.begin_ns, -event.end_ns))
        lanes[lane.name].append(lane)
    other = document["otherData"]
    return TraceContent(dict(lanes), other["start_monotonic_ns"], other["num_dropped_events"])


def overlaps(lane: Lane) -> list[tuple[Event, Event]]:
    """Neighbours of a lane that neither follow each other nor lie one within the other. A right trace has none."""
    wrong = []
    open_events: list[Event] = []
    for event in lane.events:
        while open_events and open_events[-1].end_ns <= event.begin_ns:
            open_events.pop()
        if open_events and event.end_ns > open_events[-1].end_ns:
            wrong.append((open_events[-1], event))
        open_events.append(event)
    return wrong


def busy_share(events: Iterable[Event], begin_ns: int, end_ns: int) -> float:
    """What events that do not overlap take of a window."""
    inside = (min(event.end_ns, end_ns) - max(event.begin_ns, begin_ns) for event in events)
    return sum(max(duration, 0) for duration in inside) / max(end_ns - begin_ns, 1)


def step_gaps(lane: Lane, begin_ns: int, end_ns: int) -> list[int]:
    """Nanoseconds between one step and the next, within a window."""
    steps = [step for step in lane.named("step") if step.begin_ns >= begin_ns and step.end_ns <= end_ns]
    return [after.begin_ns - before.end_ns for before, after in itertools.pairwise(steps)]


def report(trace: TraceContent, begin_ns: int, end_ns: int) -> Iterable[str]:
    yield f"window: {begin_ns / 1e9:.3f} s to {end_ns / 1e9:.3f} s of the trace"
    if trace.num_dropped_events:
        yield f"incomplete: {trace.num_dropped_events} events did not fit"
    for lane in trace.all_lanes():
        inside = [event for event in lane.events if event.begin_ns < end_ns and event.end_ns > begin_ns]
        totals: dict[str, list[int]] = defaultdict(list)
        for event in inside:
            totals[event.name].append(event.duration_ns)
        yield f"{lane.name}:"
        for name, durations in sorted(totals.items(), key=lambda item: -sum(item[1])):
            events = [event for event in inside if event.name == name]
            yield (
                f"  {name:<12} {busy_share(events, begin_ns, end_ns):7.2%}  {len(durations):8} times, "
                f"{sum(durations) / len(durations) / 1e3:10.1f} us each, longest {max(durations) / 1e3:.1f} us"
            )
        gaps = step_gaps(lane, begin_ns, end_ns)
        if gaps:
            yield f"  between steps: {sum(gaps) / len(gaps) / 1e3:.1f} us each, longest {max(gaps) / 1e3:.1f} us"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--begin", type=float)
    parser.add_argument("--end", type=float)
    options = parser.parse_args(arguments)
    try:
        trace = read_trace(options.file)
    except (OSError, ValueError, KeyError) as error:
        print(f"{options.file}: {error!r}", file=sys.stderr)
        return 1
    begin_ns = trace.ready_ns if options.begin is None else int(options.begin * 1e9)
    end_ns = trace.end_ns if options.end is None else int(options.end * 1e9)
    with contextlib.suppress(BrokenPipeError):  # whoever reads has seen enough
        print("\n".join(report(trace, begin_ns, end_ns)), flush=True)
        return 0
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
