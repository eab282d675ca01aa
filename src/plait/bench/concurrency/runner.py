"""All runs of ``plait bench concurrency``: a fresh process for each, the candidates in turns.

Knows: which runs there are, in which order. Must not know: what an engine is; children do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plait.bench.concurrency.job import Candidate, Job, JobResult, ProbeSizes, has_setting, offered
from plait.bench.concurrency.records import read_record
from plait.bench.concurrency.report import AcceptRun, ConcurrencyReport, DisturbanceRun, LoadRun, build_report
from plait.bench.concurrency.scenario import MAX_CLIENTS, Scenario
from plait.bench.machine import describe_machine, load_average
from plait.config import read_machine
from plait.errors import ConfigError, PlaitError

MAX_ROUNDS = 100
MAX_THREADS = 1024
RUN_TIMEOUT_S = 3600.0
QUICK_PROBES = ProbeSizes(streams=2, context_tokens=16, probes=5, long_prompt_tokens=200, quiet_tokens=8)

RunJob = Callable[[Job], JobResult]


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    loads: tuple[Scenario, ...]
    """Empty: only probes."""
    modes: tuple[str, ...] = ()
    """Empty: all that this build offers; so is ``parallelisms``."""
    parallelisms: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    """Numbers of compute threads; empty: 1 to the cores of the budget."""
    clients: tuple[int, ...] = ()
    """Empty: those of each load."""
    rounds: int = 3
    has_probes: bool = True
    """Whether the time to take a request in and what a long prompt does are measured, too."""
    is_quick: bool = False
    """Tiny loads and one round: shows that everything runs, says nothing about speed."""

    def check(self) -> None:
        """Raises ConfigError when a value makes no sense or is not offered."""
        if not self.loads and not self.has_probes:
            raise ConfigError("bench concurrency: name a load")
        names = [load.name for load in self.loads]
        if len(set(names)) < len(names):
            raise ConfigError(f"bench concurrency: two loads have one name: {', '.join(names)}")
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise ConfigError(f"bench concurrency: 1 to {MAX_ROUNDS} rounds, not {self.rounds}")
        if not all(1 <= count <= MAX_THREADS for count in self.threads):
            raise ConfigError(f"bench concurrency: give 1 to {MAX_THREADS} threads")
        if not all(1 <= count <= MAX_CLIENTS for count in self.clients):
            raise ConfigError(f"bench concurrency: give 1 to {MAX_CLIENTS} clients")
        for flag, wanted, known in (
            ("--modes", self.modes, offered("engine_mode", "threads")),
            ("--parallelism", self.parallelisms, offered("compute_parallelism", "tensor")),
        ):
            for word in wanted:
                if word not in known:
                    raise ConfigError(
                        f"bench concurrency: {flag}: {word!r} is not offered; use {', '.join(known)}"
                    )

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(mode, parallelism, threads)
            for threads in sorted(set(self.threads)) or default_threads(read_machine().num_usable_cores)
            for parallelism in self.parallelisms or offered("compute_parallelism", "tensor")
            for mode in self.modes or offered("engine_mode", "threads")
        ]


def default_threads(num_cores: int) -> list[int]:
    """1, 2, 3, 4, then powers of two, and all cores."""
    return sorted({n for n in range(1, num_cores + 1) if n <= 4 or n & (n - 1) == 0} | {num_cores})


def run_concurrency_bench(
    model_path: Path,
    settings: ConcurrencySettings,
    on_progress: Callable[[str], None] = lambda _: None,
    run_job: RunJob | None = None,
) -> ConcurrencyReport:
    """Measures everything; blocks for all of that. ``on_progress`` is told what runs next.

    Raises:
        ConfigError: a setting makes no sense or does not fit the model.
        PlaitError: a run failed; the message says which.
    """
    settings.check()
    load_before = load_average()
    session = _Session(str(model_path.resolve()), settings, on_progress, run_job or run_in_process)
    session.run_loads()
    if settings.has_probes:
        session.run_probes()
    if not (session.load_runs or session.accept_runs):
        refusals = "; ".join(f"{label}: {reason}" for label, reason in session.not_offered.items())
        raise ConfigError(f"bench concurrency: the engine runs in none of these ways: {refusals}")
    candidates = settings.candidates()
    return build_report(
        model=session.model_name or model_path.stem,
        model_bytes=model_path.stat().st_size,
        load_before=load_before,
        machine=describe_machine(isa=session.isa, num_compute_threads=max(c.threads for c in candidates)),
        settings={
            **asdict(settings),
            "loads": [asdict(load) for load in settings.loads],
            "rounds": session.num_rounds,
        },
        runs=(session.load_runs, session.accept_runs, session.disturbance_runs),
        not_offered=session.not_offered,
    )


class _Session:
    def __init__(
        self, model: str, settings: ConcurrencySettings, tell: Callable[[str], None], run_job: RunJob
    ) -> None:
        self._model = model
        self._settings = settings
        self._tell = tell
        self._run_job = run_job
        self._candidates = settings.candidates()
        self.num_rounds = 1 if settings.is_quick else settings.rounds
        self.isa = ""
        self.model_name = ""
        self.load_runs: list[LoadRun] = []
        self.accept_runs: list[AcceptRun] = []
        self.disturbance_runs: list[DisturbanceRun] = []
        self.not_offered: dict[str, str] = {}

    def run_loads(self) -> None:
        for round_idx in range(self.num_rounds):
            for load in self._settings.loads:
                scenario = load.reduced() if self._settings.is_quick else load
                for clients in self._settings.clients or scenario.clients:
                    for candidate in self._in_turn(round_idx):
                        what = f"{scenario.name}, {clients} clients, {candidate.label}"
                        job = Job(self._model, candidate, clients, scenario)
                        result = self._run(f"round {round_idx + 1}: {what}", job)
                        if result is not None and result.figures is not None:
                            self.load_runs.append(
                                LoadRun(round_idx, scenario.name, clients, candidate, result.figures)
                            )

    def run_probes(self) -> None:
        """Each mode with each parallelism, on as many threads as there are."""
        sizes = QUICK_PROBES if self._settings.is_quick else ProbeSizes()
        most = max(candidate.threads for candidate in self._candidates)
        for round_idx in range(self.num_rounds):
            for candidate in self._in_turn(round_idx):
                if candidate.threads == most:
                    self._probe(round_idx, candidate, sizes)

    def _probe(self, round_idx: int, candidate: Candidate, sizes: ProbeSizes) -> None:
        where = f"round {round_idx + 1}: {candidate.label}"
        result = self._run(f"{where}, taking requests in", Job(self._model, candidate, accept=sizes))
        if result is not None and result.accept is not None:
            self.accept_runs.append(AcceptRun(round_idx, candidate, result.accept))
        for is_unpaced in (False, True) if has_setting("target_step_s") else (False,):
            what = "a long prompt" + " in steps without a limit" * is_unpaced
            job = Job(self._model, candidate, disturbance=sizes, is_unpaced=is_unpaced)
            result = self._run(f"{where}, {what}", job)
            if result is not None and result.disturbance is not None:
                run = DisturbanceRun(round_idx, candidate, is_unpaced, result.disturbance)
                self.disturbance_runs.append(run)

    def _in_turn(self, round_idx: int) -> Iterator[Candidate]:
        """Every other round backwards: none always comes after the same one."""
        candidates = self._candidates if round_idx % 2 == 0 else self._candidates[::-1]
        yield from (c for c in candidates if c.label not in self.not_offered)

    def _run(self, what: str, job: Job) -> JobResult | None:
        self._tell(what)
        try:
            result = self._run_job(job)
        except PlaitError as error:
            raise type(error)(f"bench concurrency: {what}: {error}") from None
        if result.not_offered is not None:
            self.not_offered[job.candidate.label] = result.not_offered
            return None
        self.isa, self.model_name = result.isa, result.model_name
        return result


def run_in_process(job: Job, command: Sequence[str] = ()) -> JobResult:
    """Runs a job in a process of its own, which is gone when this returns, however it returns.

    Raises:
        PlaitError: the run failed, died or took longer than RUN_TIMEOUT_S.
    """
    command = command or (sys.executable, "-m", "plait.bench.concurrency")
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process:
            try:
                output, _ = process.communicate(json.dumps(asdict(job)).encode(), timeout=RUN_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise PlaitError(f"the run did not end within {RUN_TIMEOUT_S:.0f} s") from None
            finally:
                process.kill()
        errors.seek(0)
        complaints = errors.read().decode(errors="replace").strip().splitlines()
    lines = output.decode(errors="replace").splitlines()
    try:
        reply = json.loads(lines[-1])
        if "error" in reply:
            raise PlaitError(str(reply["error"]))
        return read_record(JobResult, reply["result"], "result")
    except (IndexError, ValueError, KeyError, TypeError):
        reason = complaints[-1] if complaints else "it said nothing"
        raise PlaitError(f"the run died with exit code {process.returncode}: {reason}") from None
