"""Settings of one engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from plait.config.values import MAX_BYTES, Bytes, Choices, Section, Text, Weights
from plait.errors import ConfigError

BLOCK_TOKENS = (16, 32, 64, 128, 256, 512)
"""What the attention kernels can walk: positions are lanes, and a partition of 512 holds whole blocks."""
KvCacheDtype = Literal["f16", "q8"]
EngineMode = Literal["threads", "coroutine", "native"]
ComputeParallelism = Literal["tensor", "pipeline"]


class EngineConfig(Section):
    """What an engine needs to know besides its model. ``None``: chosen from the model and the machine."""

    max_model_len: int | None = Field(
        default=None,
        ge=2,
        le=1 << 24,
        description="Longest prompt plus answer of a request, in tokens; each takes one at least. "
        "Default: the model's own limit.",
    )
    kv_cache_bytes: Bytes | None = Field(
        default=None,
        ge=1,
        le=MAX_BYTES,
        description="Size of the KV cache of all requests, e.g. 2GiB. Default: from the memory budget.",
    )
    kv_prefault_bytes: Bytes = Field(
        default=0,
        ge=0,
        le=MAX_BYTES,
        description="How much of the KV cache takes its memory at start, e.g. 1GiB; more than it has means all of it. "
        "The rest takes memory when it is first used, during a step, which is late by 0.1 to 5 ms for each 2 MiB.",
    )
    kv_cache_dtype: KvCacheDtype = Field(
        default="f16",
        description="How the KV cache stores keys and values: f16, or q8 (8 bits and a scale), which takes about "
        "half the memory and reads less at long contexts, for slightly different answers.",
    )
    block_tokens: Annotated[int, Choices(BLOCK_TOKENS)] = Field(
        default=16, ge=1, le=1024, description="Tokens in one block of the KV cache."
    )
    max_batch_size: int = Field(
        default=64, ge=1, le=4096, description="Most sequences that one step computes together."
    )
    max_batch_tokens: int = Field(
        default=512, ge=1, le=65536, description="Most tokens, prefill and decode together, in one step."
    )
    engine_mode: EngineMode = Field(
        default="threads",
        description="Who runs scheduling, computing and delivery: a thread each (threads), coroutines of one "
        "thread (coroutine), or threads without Python between steps (native). The answers are the same.",
    )
    num_compute_threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Size of the compute team. Default: the physical cores in the core budget.",
    )
    compute_parallelism: ComputeParallelism = Field(
        default="tensor",
        description="How a step uses the compute team: tensor divides one operation after another over all threads; "
        "pipeline cuts the step in two and runs the attention of one half beside the feed-forward network of the "
        "other, which takes 2 threads or more. Answers are the same, bit for bit.",
    )
    kv_swap_bytes: Bytes = Field(
        default=0,
        ge=0,
        le=MAX_BYTES,
        description="Memory for the KV blocks of requests that others have displaced, where bringing them back is "
        "quicker than computing them again.",
    )
    kv_swap_dir: Text | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Folder, which must exist, for a file with such blocks when kv_swap_bytes are used up. The file "
        "has no name and is gone when the engine ends. Default: no file.",
    )
    batch_timeout_s: float = Field(
        default=0.0,
        ge=0.0,
        le=10.0,
        description="Seconds that an idle engine waits for a fuller batch before it starts a step.",
    )
    tenant_weights: Weights | None = Field(
        default=None,
        min_length=1,
        max_length=65536,
        description="Shares of tenants as NAME=WEIGHT,NAME=WEIGHT: when several have requests, the time of a step is "
        "divided by these weights. Who is not named has 1. A server's tenants are its clients' addresses, one by one: "
        "192.0.2.7=2; of IPv6 the /64 network: 2001:db8:0:1::/64=2.",
    )
    max_queued_requests: int = Field(
        default=1024,
        ge=1,
        le=100_000,
        description="Choices (requests times n) that may wait; more are refused as overload.",
    )
    max_queued_tokens: int = Field(
        default=1_000_000,
        ge=1,
        le=1_000_000_000,
        description="Prompt tokens that may wait; more are refused as overload.",
    )
    enable_prefix_cache: bool = Field(
        default=True, description="Reuse the KV blocks of prompt beginnings that were computed before."
    )
    prefill_chunk_tokens: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Longest slice of one prompt in one step. Default: only max_batch_tokens limits it.",
    )
    target_step_s: float | None = Field(
        default=None,
        gt=0.0,
        le=3600.0,
        description="Seconds that a step with running streams may take: prompts are cut into slices that fit, by the "
        "costs of this machine, which are learned while it runs. Default: about twice what the slowest in a hundred of "
        "the streams' steps will take without the prompt, when it is through and their contexts have grown.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**64,
        description="Every request that brings no seed uses this one, so the same request gives the same "
        "tokens. Default: a new random seed for each request.",
    )
    weight_cache: bool = Field(
        default=True,
        description="Keep packed weights in a file, so that the next start need not pack them and processes "
        "share them.",
    )
    weight_cache_bytes: Bytes = Field(
        default=20 << 30,
        ge=0,
        le=MAX_BYTES,
        description="What packed files may take together; those that were used longest ago are removed first, "
        "never one in use.",
    )
    share_weights: bool | None = Field(
        default=None,
        description="Compute with the pages of the packed file, which processes share, not with a copy. "
        "Default: unless the file system gives such pages no huge pages, which makes them slower.",
    )
    trace: Text | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="File to write what each thread does to, for the Perfetto viewer; one that is there is replaced. "
        "Default: no trace.",
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> EngineConfig:
        if self.max_batch_size > self.max_batch_tokens:
            raise ValueError(
                f"max_batch_size ({self.max_batch_size}) must not exceed max_batch_tokens "
                f"({self.max_batch_tokens}): every sequence of a step takes at least one token"
            )
        return self

    def check_num_threads(self, num_threads: int) -> None:
        """``num_threads``: the size of the compute team, chosen or configured.

        Raises:
            ConfigError: it is too small for compute_parallelism.
        """
        if self.compute_parallelism == "pipeline" and num_threads < 2:
            raise ConfigError(
                f"compute_parallelism pipeline needs 2 compute threads or more, and num_compute_threads is "
                f"{num_threads}; raise it, or use compute_parallelism tensor"
            )
