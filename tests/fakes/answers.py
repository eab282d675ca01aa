"""Runs requests on a whole engine and collects what comes out of it, in a form that ``==`` compares."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.client import EngineClient
from plait.types import FinishReason, GenerateRequest, TokenOutput


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, float, int, tuple[tuple[int, float], ...]]] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, float] | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0

    def content(self) -> tuple[object, ...]:
        return (self.token_ids, self.logprobs, self.prompt_logprobs, self.finish_reason)


def run(client: EngineClient, requests: Sequence[GenerateRequest]) -> list[list[Answer]]:
    """Submits all at once; one list of n answers per request."""
    answers: dict[int, list[Answer]] = {}
    early: list[TokenOutput] = []
    lock = threading.Lock()
    done = threading.Event()
    left = sum(request.sampling.n for request in requests)

    def take(output: TokenOutput) -> None:
        nonlocal left
        answer = answers[output.request_id][output.index]
        answer.token_ids += output.token_ids
        answer.logprobs += [(x.token_id, x.logprob, x.rank, x.top) for x in output.logprobs]
        answer.prompt_logprobs += [
            None if x is None else (x.token_id, x.logprob) for x in output.prompt_logprobs
        ]
        answer.num_cached_tokens = max(answer.num_cached_tokens, output.num_cached_tokens)
        if output.finish_reason is not None:
            assert answer.finish_reason is None
            assert output.error is None, output.error
            answer.finish_reason = output.finish_reason
            left -= 1
            if left == 0:
                done.set()

    def on_output(output: TokenOutput) -> None:
        with lock:
            if output.request_id in answers:
                take(output)
            else:
                early.append(output)

    ids = []
    for request in requests:
        request_id = client.submit(request, on_output)
        with lock:
            answers[request_id] = [Answer() for _ in range(request.sampling.n)]
            mine = [output for output in early if output.request_id == request_id]
            early[:] = [output for output in early if output.request_id != request_id]
            for output in mine:
                take(output)
        ids.append(request_id)
    assert done.wait(240)
    return [answers[i] for i in ids]
