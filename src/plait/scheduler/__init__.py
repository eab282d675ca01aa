"""Which tokens of which sequences run in the next step. Level 1: pure policy over plain data.

Knows: requests, sequences, budgets, the KV manager through a Protocol. Must not know: threads, clocks (time
is passed in), native code. One thread calls everything; only the gauges may be read from others.
"""

from __future__ import annotations

from plait.scheduler.blocks import KvBlocks
from plait.scheduler.limits import SchedulerLimits
from plait.scheduler.request import RequestState
from plait.scheduler.scheduler import Scheduler
from plait.scheduler.sequence import Sequence
from plait.scheduler.stats import SchedulerStats
from plait.scheduler.step import StepOutcome, StepPlan

__all__ = [
    "KvBlocks",
    "RequestState",
    "Scheduler",
    "SchedulerLimits",
    "SchedulerStats",
    "Sequence",
    "StepOutcome",
    "StepPlan",
]
