"""A deterministic stand-in for the model, behind the interface of the native compute thread.

Steps come as the native scheduler makes them and results go back as native ones.

It keeps a "KV cache": one number per (block, offset). The number of a position is a hash of the token and
of all the numbers before it, read through the block table that the step brings: a wrong table, a missed copy
or a block that was given away too early changes every later token. The next token is a hash of the last
number.
"""

from __future__ import annotations

import threading
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plait import _native

POISON = 0xDEADBEEF


@dataclass
class FakeSlotStart:
    slot: int
    prompt_ids: list[int]
    output_ids: list[int] = field(default_factory=list)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    num_logprobs: int = -1
    min_tokens: int = 0
    stop_token_ids: list[int] = field(default_factory=list)
    logit_bias: list[tuple[int, float]] = field(default_factory=list)

    @staticmethod
    def of(start: _native.SlotStart) -> FakeSlotStart:
        names = FakeSlotStart.__dataclass_fields__
        return FakeSlotStart(**{name: getattr(start, name) for name in names})


@dataclass
class FakeStepInput:
    """A native StepInput as plain lists: the native ones are built anew on each access."""

    step_id: int = 0
    token_ids: list[int] = field(default_factory=list)
    seq_slots: list[int] = field(default_factory=list)
    query_starts: list[int] = field(default_factory=list)
    context_lens: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)
    sample_rows: list[int] = field(default_factory=list)
    sample_slots: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    slot_starts: list[FakeSlotStart] = field(default_factory=list)
    scores: list[tuple[int, int, int]] = field(default_factory=list)

    @staticmethod
    def of(step: _native.StepInput) -> FakeStepInput:
        names = FakeStepInput.__dataclass_fields__
        fields = {name: getattr(step, name) for name in names if name != "slot_starts"}
        return FakeStepInput(slot_starts=[FakeSlotStart.of(start) for start in step.slot_starts], **fields)


Top = list[tuple[int, float]]


@dataclass
class FakeStepResult:
    step_id: int
    error: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)
    scores: list[tuple[float, int, Top]] = field(default_factory=list)
    begin_ns: int = 0
    end_ns: int = 0
    was_skipped: bool = False

    def to_native(self) -> _native.StepResult:
        return _native.StepResult(
            self.step_id,
            error=self.error,
            tokens=self.tokens,
            logprobs=self.logprobs,
            ranks=self.ranks,
            tops=self.tops,
            scores=self.scores,
            begin_ns=self.begin_ns,
            end_ns=self.end_ns,
            was_skipped=self.was_skipped,
        )


def extend_hash(values: array[int], token: int) -> int:
    """The number of the position after ``values``."""
    return zlib.crc32(values.tobytes() + token.to_bytes(4, "little"))


def sample(value: int, start: FakeSlotStart, history: Sequence[int], counter: int, vocab: int) -> int:
    """A pure function of the last number, the sampling state and the number of produced tokens."""
    mixed = value
    if start.temperature > 0:
        mixed = zlib.crc32(f"{value} {start.seed} {counter} {start.temperature:g}".encode())
    if start.repetition_penalty != 1.0:
        mixed = zlib.crc32(f"{mixed} {list(history)}".encode())
    for token, bias in start.logit_bias:
        if bias >= 100.0:
            return token
    token = mixed % vocab
    while counter < start.min_tokens and token in start.stop_token_ids:
        token = (token + 1) % vocab
    return token


def logprob_of(value: int, token: int, num_top: int, vocab: int) -> tuple[float, int, Top]:
    mixed = zlib.crc32(f"{value} {token}".encode())
    top = [((value + k) % vocab, -0.5 - k) for k in range(max(num_top, 0))]
    # Exact in 32 bits, as all numbers here that pass through the native types.
    return -(mixed % 1000) / 128 - 0.0625, 1 + mixed % 7, top


class _Slot:
    def __init__(self, start: FakeSlotStart) -> None:
        self.start = start
        self.history = [*start.prompt_ids, *start.output_ids]
        self.counter = len(start.output_ids)

    @property
    def last_token(self) -> int:
        return self.history[-1]


class FakeModel:
    """Runs steps at once, in the caller's thread. Checks each step as the native runner does."""

    def __init__(
        self, num_blocks: int, block_tokens: int, vocab_size: int, *, max_slots: int, max_tokens: int
    ):
        self.block_tokens = block_tokens
        self.vocab_size = vocab_size
        self.max_slots = max_slots
        self.max_tokens = max_tokens
        self.memory = [array("I", [POISON] * block_tokens) for _ in range(num_blocks)]
        # As in the native runner a slot exists before its first start: the step that should have started it
        # may have failed.
        self._slots = [_Slot(FakeSlotStart(slot, [0])) for slot in range(max_slots)]
        self.num_steps = 0
        self.num_rows = 0

    def run(self, step: FakeStepInput) -> FakeStepResult:
        self._check(step)
        self.num_steps += 1
        self.num_rows += len(step.token_ids)
        for src, dst in step.copies:
            self.memory[dst] = self.memory[src][:]
        for start in step.slot_starts:
            self._slots[start.slot] = _Slot(start)
        row_values: list[int] = []
        for i, slot in enumerate(step.seq_slots):
            tokens = step.token_ids[step.query_starts[i] : step.query_starts[i + 1]]
            row_values += self._run_sequence(tokens, slot, step.context_lens[i], step.block_tables[i])
        result = FakeStepResult(step.step_id)
        sampled = []
        for row, slot_id in zip(step.sample_rows, step.sample_slots, strict=True):
            slot = self._slots[slot_id]
            value = row_values[row]
            token = sample(value, slot.start, slot.history, slot.counter, self.vocab_size)
            logprob, rank, top = logprob_of(value, token, slot.start.num_logprobs, self.vocab_size)
            result.tokens.append(token)
            result.logprobs.append(logprob)
            result.ranks.append(rank)
            result.tops.append(top)
            sampled.append((slot, token))
        for slot, token in sampled:
            slot.history.append(token)
            slot.counter += 1
        for row, token, num_top in step.scores:
            result.scores.append(logprob_of(row_values[row], token, num_top, self.vocab_size))
        return result

    def _run_sequence(self, tokens: list[int], slot: int, context_len: int, table: list[int]) -> list[int]:
        size = self.block_tokens
        begin = context_len - len(tokens)
        values = array("I")
        for i in range(-(-begin // size)):
            values.extend(self.memory[table[i]][: min(size, begin - i * size)])
        out = []
        for position, token in enumerate(tokens, begin):
            value = extend_hash(values, self._slots[slot].last_token if token < 0 else token)
            self.memory[table[position // size]][position % size] = value
            values.append(value)
            out.append(value)
        return out

    def _check(self, step: FakeStepInput) -> None:
        num_seqs, num_tokens = len(step.seq_slots), len(step.token_ids)
        assert 1 <= num_tokens <= self.max_tokens, f"{num_tokens} tokens"
        assert len(step.context_lens) == len(step.block_tables) == num_seqs == len(step.query_starts) - 1
        assert step.query_starts[0] == 0
        assert step.query_starts[-1] == num_tokens
        assert len(set(step.seq_slots)) == num_seqs, "a sequence is twice in a step"
        assert len(set(step.sample_slots)) == len(step.sample_slots)
        assert all(0 <= slot < self.max_slots for slot in (*step.seq_slots, *step.sample_slots))
        assert all(-1 <= token < self.vocab_size for token in step.token_ids)
        written: set[tuple[int, int]] = set()
        for i in range(num_seqs):
            num_queries = step.query_starts[i + 1] - step.query_starts[i]
            assert 1 <= num_queries <= step.context_lens[i] <= len(step.block_tables[i]) * self.block_tokens
            for position in range(step.context_lens[i] - num_queries, step.context_lens[i]):
                place = (step.block_tables[i][position // self.block_tokens], position % self.block_tokens)
                assert place not in written, "two sequences write one place"
                written.add(place)


class FakeExecutor:
    """FakeModel behind rings that are bounded as the native ones are."""

    DEPTH = 4

    def __init__(
        self,
        model: FakeModel,
        ring_results_bell: Callable[[], None],
        *,
        step_s: float = 0.0,
        fail_step: Callable[[FakeStepInput], str] | None = None,
    ) -> None:
        self.model = model
        self.step_s = step_s
        self.fail_step = fail_step
        self.gate = threading.Event()
        """Clear it to freeze whoever computes before the next step."""
        self.gate.set()
        self._ring_results_bell = ring_results_bell
        self._steps: deque[FakeStepInput] = deque()
        self._results: deque[FakeStepResult] = deque()

    gap_ns = 0
    max_gap_ns = 0

    @property
    def num_queued_steps(self) -> int:
        return len(self._steps)

    @property
    def num_queued_results(self) -> int:
        return len(self._results)

    def submit(self, step: _native.StepInput) -> bool:
        if len(self._steps) >= self.DEPTH:
            return False
        self._steps.append(FakeStepInput.of(step))
        return True

    def pop_results(self) -> list[_native.StepResult]:
        results = []
        while self._results:
            results.append(self._results.popleft().to_native())
        return results

    def stop(self) -> None:
        """See plait.engine.parts.Executor."""

    def _run_oldest(self) -> None:
        step = self._steps.popleft()
        self.gate.wait()
        self._results.append(self._run(step))
        self._ring_results_bell()

    def _run(self, step: FakeStepInput) -> FakeStepResult:
        begin_ns = time.monotonic_ns()
        if self.step_s:
            time.sleep(self.step_s)
        error = self.fail_step(step) if self.fail_step else ""
        try:
            result = FakeStepResult(step.step_id, error=error) if error else self.model.run(step)
        except Exception as caught:  # as the native thread: an error is a result
            result = FakeStepResult(step.step_id, error=f"check failed: {caught!r}")
        result.begin_ns, result.end_ns = begin_ns, time.monotonic_ns()
        return result


class FakeInlineExecutor(FakeExecutor):
    """Runs steps on the calling thread."""

    def run_next(self) -> bool:
        if not self._steps:
            return False
        self._run_oldest()
        return True


class FakeComputeThread(FakeExecutor):
    """Runs steps on a thread of its own."""

    def __init__(
        self,
        model: FakeModel,
        ring_results_bell: Callable[[], None],
        *,
        step_s: float = 0.0,
        fail_step: Callable[[FakeStepInput], str] | None = None,
    ) -> None:
        super().__init__(model, ring_results_bell, step_s=step_s, fail_step=fail_step)
        self._is_stopping = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="fake-compute", daemon=True)
        self._thread.start()

    def submit(self, step: _native.StepInput) -> bool:
        with self._wake:
            is_taken = super().submit(step)
            self._wake.notify()
        return is_taken

    def stop(self) -> None:
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join(10)

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._steps and not self._is_stopping:
                    self._wake.wait()
                if not self._steps:
                    return
            self._run_oldest()
