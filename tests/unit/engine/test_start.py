"""What start_engine refuses before it reads a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.config import EngineConfig
from plait.engine import start_engine
from plait.errors import ConfigError


@pytest.mark.parametrize("block_tokens", [1, 7, 24, 1024])
def test_block_tokens_that_no_kernel_walks_are_named(block_tokens: int) -> None:
    with pytest.raises(ConfigError, match=f"block_tokens is {block_tokens}; use one of 16, 32"):
        start_engine(Path("no-such-file.gguf"), EngineConfig(block_tokens=block_tokens))


def test_a_pipeline_of_one_thread_is_refused() -> None:
    config = EngineConfig(compute_parallelism="pipeline", num_compute_threads=1)
    with pytest.raises(ConfigError, match="pipeline needs 2 compute threads or more"):
        start_engine(Path("no-such-file.gguf"), config)
