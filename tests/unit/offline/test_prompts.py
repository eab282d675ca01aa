"""Forms of prompts and the building of outputs."""

from __future__ import annotations

from typing import Any

import pytest

from plait.errors import InvalidRequestError
from plait.frontend import TextDelta, TextLogprob, TopLogprob, Usage
from plait.offline.outputs import empty_output, extend
from plait.offline.prompts import split_chats, split_prompts, spread_sampling
from plait.types import FinishReason, GenerateRequest, SamplingParams


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("hello", ["hello"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ({"prompt": "a"}, ["a"]),
        ({"prompt_token_ids": [1]}, [[1]]),
        ([{"prompt": "a"}, "b", {"prompt_token_ids": (3,)}, [4]], ["a", "b", [3], [4]]),
        ([], []),
    ],
)
def test_split_prompts(prompts: Any, expected: list[str | list[int]]) -> None:
    assert split_prompts(prompts) == expected


@pytest.mark.parametrize("prompts", [[None], [{}], [{"prompt": 3}], [["a"]], [[1.5]], [[True]]])
def test_other_prompts_are_refused(prompts: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        split_prompts(prompts)
    assert caught.value.param in ("prompts", "prompts[0]")


def test_split_chats() -> None:
    chat = [{"role": "user", "content": "x"}]
    assert split_chats(chat) == [chat]
    assert split_chats([chat, chat]) == [chat, chat]


def test_spread_sampling() -> None:
    assert spread_sampling(None, 2) == [SamplingParams()] * 2
    assert spread_sampling(SamplingParams(n=2), 1) == [SamplingParams(n=2)]
    with pytest.raises(InvalidRequestError, match="3 prompts but 1 sampling_params"):
        spread_sampling([SamplingParams()], 3)


def delta(index: int, text: str, ids: tuple[int, ...], **rest: Any) -> TextDelta:
    return TextDelta(0, index, text, ids, Usage(2, len(ids), 1), **rest)


def test_extend_builds_each_answer() -> None:
    request = GenerateRequest((7, 8), SamplingParams(n=2, logprobs=1))
    output = empty_output("r", "p", request)
    assert not output.finished
    chosen = TextLogprob(5, "e", b"e", -1.5, 0, (TopLogprob(4, "d", b"d", -0.5),))
    output = extend(output, [delta(0, "e", (5,), logprobs=(chosen,)), delta(1, "x", (6,))])
    output = extend(output, [delta(0, "f", (9,), finish_reason=FinishReason.LENGTH)])
    assert not output.finished
    output = extend(output, [delta(1, "", (), finish_reason=FinishReason.STOP, stop_reason="y")])
    assert output.finished
    assert output.num_cached_tokens == 1
    first, second = output.outputs
    assert (first.text, first.token_ids, first.finish_reason) == ("ef", (5, 9), "length")
    assert first.logprobs is not None
    assert first.logprobs[0][4].rank == 1
    assert (first.logprobs[0][5].logprob, first.logprobs[0][5].rank) == (-1.5, None)
    assert first.cumulative_logprob == -1.5
    assert (second.text, second.finish_reason, second.stop_reason) == ("x", "stop", "y")


def test_no_logprobs_unless_asked_for() -> None:
    output = extend(empty_output("r", None, GenerateRequest((1,))), [delta(0, "a", (2,))])
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None
    assert output.prompt_logprobs is None
