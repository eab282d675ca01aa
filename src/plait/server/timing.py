"""Feeds the latency histograms from the deltas of one request."""

from __future__ import annotations

import time

from plait.frontend import TextDelta
from plait.server.state import ServerMetrics


class RequestTimer:
    def __init__(self, metrics: ServerMetrics, arrived_at: float) -> None:
        self._metrics = metrics
        self._arrived_at = arrived_at
        self._last_at: dict[tuple[int, int], float] = {}

    def admitted(self, num_prompt_tokens: int) -> None:
        self._metrics.queue_time.observe(time.monotonic() - self._arrived_at)
        self._metrics.prompt_tokens.add(amount=num_prompt_tokens)

    def observe(self, batch: list[TextDelta]) -> None:
        now = time.monotonic()
        metrics = self._metrics
        for delta in batch:
            num_tokens = len(delta.token_ids)
            if not num_tokens:
                continue
            metrics.completion_tokens.add(amount=num_tokens)
            key = (delta.request_idx, delta.index)
            last_at = self._last_at.get(key)
            if last_at is not None:
                # Several tokens in one delta share the time that they took together.
                metrics.inter_token.observe((now - last_at) / num_tokens, num_tokens)
            elif not self._last_at:
                metrics.first_token.observe(now - self._arrived_at)
            self._last_at[key] = now

    def ended(self) -> None:
        self._metrics.end_to_end.observe(time.monotonic() - self._arrived_at)
