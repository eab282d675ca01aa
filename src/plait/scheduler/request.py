"""A request inside the scheduler: its fixed terms and its choices."""

from __future__ import annotations

from plait.scheduler.sequence import Sequence
from plait.scheduler.tenants import Tenant
from plait.types import GenerateRequest, TokenLogprob

_MASK64 = 2**64 - 1


def derive_seed(seed: int, index: int) -> int:
    """The 64-bit seed of choice ``index``; choice 0 has the request's own, so that n does not change it."""
    if index == 0:
        return seed & _MASK64
    # SplitMix64: nearby (seed, index) give unrelated streams.
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


class RequestState:
    __slots__ = (
        "arrival",
        "arrived_at",
        "choices",
        "deadline",
        "is_forked",
        "max_tokens",
        "num_cached_tokens",
        "num_open",
        "num_prompt",
        "num_scores_scheduled",
        "priority",
        "prompt",
        "prompt_scores",
        "request",
        "request_id",
        "salt",
        "stop_ids",
        "tenant",
        "use_cache",
        "wants_logprobs",
        "wants_scores",
    )

    def __init__(
        self,
        request_id: int,
        request: GenerateRequest,
        *,
        max_tokens: int,
        arrival: int,
        now: float,
        tenant: Tenant,
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.max_tokens = max_tokens
        self.priority = request.priority
        self.arrival = arrival
        self.arrived_at = now
        self.deadline = None if request.deadline_s is None else now + request.deadline_s
        self.tenant = tenant
        self.salt = request.tenant.encode("utf-8", "surrogatepass")
        # Choice 0 appends its tokens to this list; the others copy its first num_prompt.
        self.prompt = [*request.prompt_token_ids, *request.produced_token_ids]
        self.num_prompt = len(request.prompt_token_ids)
        self.wants_logprobs = request.sampling.logprobs is not None
        self.wants_scores = request.sampling.prompt_logprobs is not None
        self.use_cache = not self.wants_scores
        """A cached position gives no logits, so a request for prompt logprobs must compute all of them."""
        self.prompt_scores: list[TokenLogprob | None] = [None]
        self.num_scores_scheduled = 1
        self.num_cached_tokens = -1
        """Not admitted yet: -1."""
        self.is_forked = request.sampling.n == 1
        self.num_open = request.sampling.n
        self.stop_ids: frozenset[int] = frozenset()
        self.choices: list[Sequence] = []
