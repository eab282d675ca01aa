"""What a load is: how many clients, what they ask for, how they behave. Read from JSON, one schema.

Knows: sizes. Must not know: engines, clocks. The same scenario, seed and number of clients is the same work.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from plait.bench.concurrency.records import read_record
from plait.errors import ConfigError

MAX_CLIENTS = 1024
MAX_REQUESTS = 100_000
MAX_SEQUENCE_TOKENS = 1 << 20
MODES_FOLDER = Path(__file__).parent / "modes"

Range = tuple[int, int]
"""Both bounds included. Values are drawn so that each factor of two is equally likely."""


@dataclass(frozen=True, slots=True)
class LongPrompts:
    """Every ``every``-th request is one with a long prompt."""

    every: int
    prompt_tokens: Range
    output_tokens: Range


@dataclass(frozen=True, slots=True)
class SlowClients:
    """Every ``every``-th client reads its outputs one by one, each ``interval_s`` after the one before, and asks
    for the next answer only when it has read the last."""

    every: int
    interval_s: float


@dataclass(frozen=True, slots=True)
class Aborts:
    """Every ``every``-th request is aborted when so many tokens have come."""

    every: int
    after_tokens: Range


@dataclass(frozen=True, slots=True)
class KvPool:
    """An engine with less room than the clients together need: sequences are preempted, saved and brought back."""

    share: float
    """Of what all clients need when each holds its longest request; one request always fits."""
    swap_bytes: int = 0
    """Memory for the blocks of preempted sequences (kv_swap_bytes)."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    description: str
    clients: tuple[int, ...]
    """Numbers of clients, each a run of its own. Every client waits for its answer before it asks again."""
    min_requests: int
    """Of one run; more when ``requests_per_client`` asks for it."""
    requests_per_client: int
    prompt_tokens: Range
    output_tokens: Range
    seed: int = 0
    temperature: float = 0.0
    """Above 0: sampled, with a seed for each request."""
    shared_prefix_tokens: int = 0
    """So many first tokens of every prompt are the same."""
    long: LongPrompts | None = None
    slow: SlowClients | None = None
    aborts: Aborts | None = None
    kv_pool: KvPool | None = None

    def num_requests(self, num_clients: int) -> int:
        return max(self.min_requests, self.requests_per_client * num_clients)

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the largest request."""
        longest = self.prompt_tokens[1] + self.output_tokens[1]
        if self.long is not None:
            longest = max(longest, self.long.prompt_tokens[1] + self.long.output_tokens[1])
        return longest

    def check(self) -> None:
        """Raises ConfigError when a value makes no sense."""
        where = f"load {self.name}"
        if not self.clients or not all(1 <= count <= MAX_CLIENTS for count in self.clients):
            raise ConfigError(f"{where}: clients must be numbers from 1 to {MAX_CLIENTS}")
        if not 1 <= self.min_requests <= MAX_REQUESTS or not 1 <= self.requests_per_client <= MAX_REQUESTS:
            raise ConfigError(f"{where}: min_requests and requests_per_client must be 1 to {MAX_REQUESTS}")
        if not 0.0 <= self.temperature <= 2.0:
            raise ConfigError(f"{where}: temperature must be 0 to 2")
        _check_range(where, "prompt_tokens", self.prompt_tokens)
        _check_range(where, "output_tokens", self.output_tokens)
        if not 0 <= self.shared_prefix_tokens < self.prompt_tokens[0]:
            raise ConfigError(f"{where}: shared_prefix_tokens must be less than every prompt")
        if self.long is not None:
            _check_every(where, "long", self.long.every)
            _check_range(where, "long: prompt_tokens", self.long.prompt_tokens)
            _check_range(where, "long: output_tokens", self.long.output_tokens)
            if self.long.prompt_tokens[0] <= self.shared_prefix_tokens:
                raise ConfigError(f"{where}: shared_prefix_tokens must be less than every long prompt")
        if self.slow is not None:
            _check_every(where, "slow", self.slow.every)
            if not 0.0 < self.slow.interval_s <= 60.0:
                raise ConfigError(f"{where}: slow: interval_s must be above 0 and at most 60")
        if self.aborts is not None:
            _check_every(where, "aborts", self.aborts.every)
            _check_range(where, "aborts: after_tokens", self.aborts.after_tokens)
        if self.kv_pool is not None:
            if not 0.0 < self.kv_pool.share <= 1.0:
                raise ConfigError(f"{where}: kv_pool: share must be above 0 and at most 1")
            if not 0 <= self.kv_pool.swap_bytes <= 1 << 50:
                raise ConfigError(f"{where}: kv_pool: swap_bytes must be 0 or more")

    def reduced(self) -> Scenario:
        """The same kinds of requests, a few and tiny: shows that everything runs, says nothing about speed."""
        long = self.long and LongPrompts(min(self.long.every, 3), (64, 96), (2, 4))
        slow = self.slow and SlowClients(min(self.slow.every, 2), 0.001)
        aborts = self.aborts and Aborts(min(self.aborts.every, 3), (1, 4))
        return replace(
            self,
            clients=(1, 3),
            min_requests=6,
            requests_per_client=2,
            prompt_tokens=(20, 40),
            output_tokens=(4, 12),
            shared_prefix_tokens=min(self.shared_prefix_tokens, 16),
            long=long,
            slow=slow,
            aborts=aborts,
        )


def _check_range(where: str, name: str, bounds: Range) -> None:
    if not 1 <= bounds[0] <= bounds[1] <= MAX_SEQUENCE_TOKENS:
        raise ConfigError(f"{where}: {name} must be two rising numbers from 1 to {MAX_SEQUENCE_TOKENS}")


def _check_every(where: str, name: str, every: int) -> None:
    if every < 1:
        raise ConfigError(f"{where}: {name}: every must be 1 or more")


def known_loads() -> list[str]:
    """Names of the scenarios that come with plait."""
    return sorted(path.stem for path in MODES_FOLDER.glob("*.json"))


def load_scenario(name: str) -> Scenario:
    """The scenario that comes with plait under ``name``, or the one in a JSON file of that path.

    Raises:
        ConfigError: there is none, or it is not as the schema wants it.
    """
    path = Path(name) if name.endswith(".json") else MODES_FOLDER / f"{name}.json"
    if not name.endswith(".json") and name not in known_loads():
        raise ConfigError(
            f"there is no load {name!r}; use {', '.join(known_loads())} or the path of a .json file"
        )
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: no JSON: {error}") from None
    scenario = read_record(Scenario, value, str(path))
    scenario.check()
    return scenario
