"""How soon a busy engine has taken a request in: from submit() to the moment when its main thread counts it.

Streams decode all the time; probes with a short prompt come at random moments of a step, one after another. A probe
is taken in when ``requests_accepted_total`` has grown, which the main thread raises when it has given a request to
the scheduler; engines without that counter are asked for their running and waiting requests.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from plait.bench.concurrency.figures import Spread
from plait.bench.concurrency.streams import RunningStreams
from plait.client import EngineClient
from plait.errors import EngineDeadError
from plait.types import GenerateRequest, SamplingParams, TokenOutput

ACCEPT_COUNTER = "requests_accepted_total"
_PROMPT_TOKENS = 8
_POLL_S = 50e-6
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class AcceptFigures:
    probes: int
    streams: int
    """That decode meanwhile."""
    step_mean_s: float
    """Of the steps that ran meanwhile."""
    submit_call: Spread
    accepted: Spread
    is_counted: bool
    """By the engine's own counter of accepted requests."""
    within_2ms_share: float | None = None
    """Of all requests meanwhile, as the engine itself measures it: from submit() until its main loop takes them. None:
    it does not."""
    engine_mean_s: float | None = None
    """Measured in the same way."""
    engine_p99_s: float | None = None
    """Measured in the same way, of all requests since the engine started."""


def measure_accept(
    client: EngineClient, *, num_streams: int, context_tokens: int, num_probes: int, seed: int = 0
) -> AcceptFigures:
    """On an idle engine; it is idle again afterwards.

    Raises:
        EngineDeadError: a probe is never taken in.
        PlaitError: a stream failed.
    """
    draw = random.Random(f"accept {seed}")
    submits: list[int] = []
    accepts: list[int] = []
    with RunningStreams(client, num_streams, context_tokens, seed) as streams:
        before = client.metrics()
        pause_s = streams.pace_s()
        for _ in range(num_probes):
            time.sleep(pause_s * draw.uniform(0.5, 1.5))
            streams.keep_up()
            submit_ns, accept_ns = _probe(client, draw)
            submits.append(submit_ns)
            accepts.append(accept_ns)
        after = client.metrics()
    num_steps = after["steps_total"] - before["steps_total"]
    step_s = after["step_seconds_total"] - before["step_seconds_total"]
    return AcceptFigures(
        probes=num_probes,
        streams=num_streams,
        step_mean_s=step_s / max(num_steps, 1),
        submit_call=Spread.of(submits),
        accepted=Spread.of(accepts),
        is_counted=ACCEPT_COUNTER in after,
        within_2ms_share=_per_request("accepted_within_2ms_total", before, after),
        engine_mean_s=_per_request("accept_seconds_total", before, after),
        engine_p99_s=after.get("accept_p99_seconds"),
    )


def _per_request(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    if name not in after or ACCEPT_COUNTER not in after:
        return None
    requests = after[ACCEPT_COUNTER] - before[ACCEPT_COUNTER]
    return (after[name] - before[name]) / max(requests, 1.0)


def _probe(client: EngineClient, draw: random.Random) -> tuple[int, int]:
    """(submit() took, taken in after), in nanoseconds; returns when the probe has ended."""
    ended = threading.Event()

    def on_output(output: TokenOutput) -> None:
        if output.finish_reason is not None:
            ended.set()

    prompt = tuple(draw.choices(range(client.info.vocab_size), k=_PROMPT_TOKENS))
    request = GenerateRequest(prompt, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
    counted = _num_accepted(client)
    begin = time.monotonic_ns()
    client.submit(request, on_output)
    submitted = time.monotonic_ns()
    while True:
        is_in = _num_accepted(client) > counted or ended.is_set()
        now = time.monotonic_ns()
        if is_in:
            break
        if now - begin > _TIMEOUT_S * 1e9:
            raise EngineDeadError("a request is not taken in")
        time.sleep(_POLL_S)
    if not ended.wait(_TIMEOUT_S):
        raise EngineDeadError("a short request does not end")
    return submitted - begin, now - begin


def _num_accepted(client: EngineClient) -> float:
    metrics = client.metrics()
    counted = metrics.get(ACCEPT_COUNTER)
    return metrics["requests_running"] + metrics["requests_waiting"] if counted is None else counted
