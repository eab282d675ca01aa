"""Sequences that decode in the background of a probe, and when each of their tokens came."""

from __future__ import annotations

import itertools
import random
import threading
import time
from types import TracebackType

from plait.bench.concurrency.figures import gaps_ns, quantile
from plait.client import EngineClient
from plait.errors import ConfigError, EngineDeadError, PlaitError
from plait.types import FinishReason, GenerateRequest, SamplingParams, TokenOutput

_TIMEOUT_S = 300.0
_WARM_TOKENS = 8


class _Stream:
    """One after the other of the same request: a sequence that has filled its context is asked for again."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.request_id = 0
        self.num_tokens = 0
        self.is_open = False
        self.runs_ns: list[list[int]] = []
        """When each token came, of each sequence."""


class RunningStreams:
    """A context: inside, all streams have begun; afterwards all have ended."""

    def __init__(self, client: EngineClient, num_streams: int, context_tokens: int, seed: int = 0) -> None:
        """Raises ConfigError when the engine has no room for such streams."""
        self._client = client
        info = client.info
        room = min(info.max_model_len, info.num_kv_blocks * info.block_tokens // num_streams)
        if room < context_tokens + 2 * _WARM_TOKENS:
            raise ConfigError(f"{num_streams} streams of {context_tokens} tokens do not fit the engine")
        draw = random.Random(f"streams {seed}")
        sampling = SamplingParams(temperature=0.0, max_tokens=room - context_tokens, ignore_eos=True)
        prompts = [tuple(draw.choices(range(info.vocab_size), k=context_tokens)) for _ in range(num_streams)]
        self._streams = [_Stream(GenerateRequest(prompt, sampling)) for prompt in prompts]
        self._error: str | None = None
        self._is_leaving = False
        self._changed = threading.Condition()

    def __enter__(self) -> RunningStreams:
        self.keep_up()
        self.wait_tokens(_WARM_TOKENS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_leaving = True
        for stream in self._streams:
            if stream.is_open:
                self._client.abort(stream.request_id)
        with self._changed:
            self._changed.wait_for(lambda: not any(stream.is_open for stream in self._streams), _TIMEOUT_S)

    def keep_up(self) -> None:
        """Begins again what has filled its context.

        Raises:
            PlaitError: a stream failed.
        """
        if self._error is not None:
            raise PlaitError(f"a stream in the background failed: {self._error}")
        for stream in self._streams:
            if not stream.is_open:
                stream.is_open = True
                self._begin(stream)

    def wait_tokens(self, num_tokens: int) -> None:
        """Until each stream has ``num_tokens`` more tokens.

        Raises:
            PlaitError: a stream failed.
            EngineDeadError: they make no progress.
        """
        goals = [stream.num_tokens + num_tokens for stream in self._streams]

        def is_there() -> bool:
            return all(s.num_tokens >= goal for s, goal in zip(self._streams, goals, strict=True))

        def needs_care() -> bool:
            return self._error is not None or not all(stream.is_open for stream in self._streams)

        while not is_there():
            self.keep_up()
            with self._changed:
                if not self._changed.wait_for(lambda: is_there() or needs_care(), _TIMEOUT_S):
                    raise EngineDeadError("the streams in the background make no progress")
        self.keep_up()

    def gaps_within_ns(self, begin_ns: int, end_ns: int) -> list[int]:
        """Between two tokens of one stream, all that lie between the two moments."""
        return [b - a for a, b in self._gaps() if a >= begin_ns and b <= end_ns]

    def gaps_across_ns(self, begin_ns: int, end_ns: int) -> list[int]:
        """All that share any time with the time between the two moments."""
        return [b - a for a, b in self._gaps() if b > begin_ns and a < end_ns]

    def tokens_within(self, begin_ns: int, end_ns: int) -> int:
        """The most that one stream had between the two moments."""
        return max(
            sum(begin_ns <= at <= end_ns for run in list(stream.runs_ns) for at in list(run))
            for stream in self._streams
        )

    def pace_s(self) -> float:
        """The usual time between two tokens of a stream."""
        gaps = sorted(gap for stream in self._streams for run in list(stream.runs_ns) for gap in gaps_ns(run))
        return quantile(gaps, 0.5) / 1e9

    def _gaps(self) -> list[tuple[int, int]]:
        runs = [list(run) for stream in self._streams for run in list(stream.runs_ns)]
        return [pair for run in runs for pair in itertools.pairwise(run)]

    def _begin(self, stream: _Stream) -> None:
        times: list[int] = []
        stream.runs_ns.append(times)

        def on_output(output: TokenOutput) -> None:
            now = time.monotonic_ns()
            with self._changed:
                if output.token_ids:
                    times.append(now)
                    stream.num_tokens += len(output.token_ids)
                if output.finish_reason is not None:
                    stream.is_open = False
                    if output.finish_reason is not FinishReason.LENGTH and not self._is_leaving:
                        self._error = output.error or f"it ended with {output.finish_reason}"
                self._changed.notify()

        stream.request_id = self._client.submit(stream.request, on_output)
