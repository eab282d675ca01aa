"""The requests of a run, drawn from a seed. Request i is the same whatever the number of clients."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

from plait.bench.concurrency.scenario import Range, Scenario
from plait.errors import ConfigError
from plait.types import EngineInfo, GenerateRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class WorkItem:
    request: GenerateRequest
    is_long: bool = False
    abort_after_tokens: int | None = None


def draw_work(scenario: Scenario, num_clients: int, info: EngineInfo) -> list[WorkItem]:
    """All requests of a run, in the order in which they are asked for.

    Raises:
        ConfigError: the largest request does not fit the engine.
    """
    if scenario.longest_tokens > info.max_model_len:
        raise ConfigError(
            f"load {scenario.name}: requests of {scenario.longest_tokens} tokens do not fit the engine's "
            f"{info.max_model_len}; use a model with a longer context, or another load"
        )
    prefix = tuple(
        random.Random(f"{scenario.seed} prefix").choices(
            range(info.vocab_size), k=scenario.shared_prefix_tokens
        )
    )
    return [_draw_item(scenario, i, prefix, info) for i in range(scenario.num_requests(num_clients))]


def num_blocks_of_work(scenario: Scenario, num_clients: int, block_tokens: int) -> int:
    """KV blocks that all requests of a run take when none is given back and none is shared."""
    draws = (_draw_sizes(scenario, i) for i in range(scenario.num_requests(num_clients)))
    return sum(-(-(draw.num_prompt + draw.num_output) // block_tokens) for draw in draws)


class _Draw(NamedTuple):
    draw: random.Random
    """For what else the request needs."""
    is_long: bool
    num_prompt: int
    num_output: int


def _draw_sizes(scenario: Scenario, i: int) -> _Draw:
    draw = random.Random(f"{scenario.seed} {i}")
    long = scenario.long if scenario.long is not None and (i + 1) % scenario.long.every == 0 else None
    source = scenario if long is None else long
    num_prompt = draw_size(draw, source.prompt_tokens)
    return _Draw(draw, long is not None, num_prompt, draw_size(draw, source.output_tokens))


def _draw_item(scenario: Scenario, i: int, prefix: tuple[int, ...], info: EngineInfo) -> WorkItem:
    draw, is_long, num_prompt, num_output = _draw_sizes(scenario, i)
    own = draw.choices(range(info.vocab_size), k=num_prompt - len(prefix))
    aborts = scenario.aborts
    abort_after = None
    if aborts is not None and (i + 1) % aborts.every == 0:
        abort_after = min(draw_size(draw, aborts.after_tokens), num_output)
    sampling = SamplingParams(
        temperature=scenario.temperature, max_tokens=num_output, ignore_eos=True, seed=scenario.seed + i
    )
    return WorkItem(GenerateRequest((*prefix, *own), sampling), is_long, abort_after)


def draw_size(draw: random.Random, bounds: Range) -> int:
    """Between the bounds, each factor of two equally likely."""
    low, high = bounds
    return min(max(round(math.exp(draw.uniform(math.log(low), math.log(high)))), low), high)
