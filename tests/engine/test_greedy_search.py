"""Greedy tokens of few sequences are searched for without all logits; they are those that all logits give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plait import LLM, SamplingParams
from plait.engine.loading import load_model
from plait.weights.loader import SEARCHING_ISAS

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUALITY = Path(__file__).parents[1] / "golden" / "quality"
NUM_TOKENS = 24


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_same_tokens_as_from_all_logits(name: str, request: pytest.FixtureRequest) -> None:
    text = np.load(QUALITY / f"{name}.npz")["windows"].reshape(-1).tolist()
    prompts = [{"prompt_token_ids": text[at : at + 20]} for at in range(0, 20 * 90, 90)]
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    path = request.getfixturevalue(f"{name}_path")
    with LLM(path, max_model_len=256, num_compute_threads=2) as llm:

        def tokens(prompts: list[dict[str, list[int]]], params: SamplingParams) -> list[tuple[int, ...]]:
            return [tuple(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]

        # Who asks for log probabilities gets all logits.
        with_logprobs = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
        expected = tokens(prompts, with_logprobs)
        assert len(set(expected)) > 15, "the texts differ"
        assert tokens(prompts, greedy) == expected  # 20 sequences: more than are searched for
        for batch in (1, 2, 7, 8):
            found = [
                token_ids
                for at in range(0, 20, batch)
                for token_ids in tokens(prompts[at : at + batch], greedy)
            ]
            assert found == expected


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_output_matrices_are_packed_to_be_searched(name: str, request: pytest.FixtureRequest) -> None:
    """It is the embedding table, too. Where it is not, the test above compares all logits with themselves."""
    model = load_model(request.getfixturevalue(f"{name}_path"), num_threads=2)
    assert model.weights.is_searched("token_embd.weight") == (model.isa in SEARCHING_ISAS)
    assert not model.weights.is_searched("blk.0.attn_q.weight")
