"""Plain data that every layer shares. Level 0: imports nothing of plait.

All of it is immutable and serialisable: a request can be rebuilt from its fields, sent to
another process and continued there (``GenerateRequest.produced_token_ids``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

MAX_N = 64
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS = 1024


# Users make and copy it: a dataclass names itself when a keyword is wrong, and dataclasses.replace works.
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. The names and meanings are vLLM's and OpenAI's.

    Checked by ``plait.validation.validate_request`` in the front end and again at EngineCore admission.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: all tokens."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    """None: a random seed is drawn at admission."""
    max_tokens: int | None = 16
    """None: what is left of the context."""
    min_tokens: int = 0
    """So many tokens are not ended by EOS, a stop token or a stop string."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: no logprobs; 0: of the chosen token only; k: the k best as well."""
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Lists, a single stop string and a dict of biases are taken too, as vLLM's users write them."""
        # What is of another type stays as it is, for the validation to judge.
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.logit_bias, dict):
            object.__setattr__(self, "logit_bias", tuple(self.logit_bias.items()))
        for name in ("stop", "stop_token_ids", "logit_bias"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))


class FinishReason(StrEnum):
    STOP = "stop"
    """EOS, a stop token or a stop string."""
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class GenerateRequest(msgspec.Struct, frozen=True):
    """One prompt for an engine: token ids, never text."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = msgspec.field(default_factory=SamplingParams)
    tenant: str = ""
    """Set by the server, never by the client; salts the prefix cache."""
    priority: int = 0
    """Lower runs first."""
    deadline_s: float | None = None
    """Seconds from submission after which the request ends with FinishReason.ABORT."""
    produced_token_ids: tuple[int, ...] = ()
    """Tokens that an earlier run of this request (n == 1) already produced; generation goes on after them."""


class TokenLogprob(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float
    rank: int
    """1 = the most likely token."""
    top: tuple[tuple[int, float], ...] = ()
    """The best (token_id, logprob), best first."""


class TokenOutput(msgspec.Struct, frozen=True):
    """What one choice of a request produced since its last output. The last one has a finish_reason."""

    request_id: int
    index: int
    """Which of the n choices."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per token id when asked for, else empty."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The EOS or stop token that ended it (it is the last of token_ids)."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    """On the first output of index 0 when asked for: one per prompt token, None for the first."""
    error: str | None = None


class EngineInfo(msgspec.Struct, frozen=True):
    """What a front end must know of an engine."""

    model_name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    num_kv_blocks: int
    block_tokens: int
    num_compute_threads: int
    isa: str


class Health(msgspec.Struct, frozen=True):
    is_alive: bool
    is_ready: bool
    is_progressing: bool
    """False when work waits and no step has ended for a while."""
    detail: str = ""
