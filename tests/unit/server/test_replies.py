"""Parts of replies that JSON or OpenAI's shapes make odd."""

from __future__ import annotations

import json
import math

import pytest

from plait.frontend import TextDelta, TextLogprob, TopLogprob, Usage
from plait.server.replies import UsageCounter, chat_logprobs, completion_logprobs, encode, finite, token_name


@pytest.mark.parametrize(
    ("given", "shown"), [(-1.5, -1.5), (0.0, 0.0), (-math.inf, -9999.0), (math.nan, -9999.0), (-1e9, -9999.0)]
)
def test_logprobs_are_finite(given: float, shown: float) -> None:
    assert finite(given) == shown
    entry = TextLogprob(97, "a", b"a", given, 0, (TopLogprob(97, "a", b"a", given),))
    chat = json.loads(encode(chat_logprobs([entry])))
    assert chat["content"][0]["logprob"] == chat["content"][0]["top_logprobs"][0]["logprob"] == shown
    completion = json.loads(encode(completion_logprobs([entry], num_top=1, offset=0)))
    assert completion["token_logprobs"] == [shown]


def test_different_parts_of_a_code_point_have_different_names() -> None:
    assert token_name("\ufffd", b"\xf0\x9f") == "bytes:\\xf0\\x9f"
    assert token_name("\ufffd", b"\x99\x82") == "bytes:\\x99\\x82"
    assert token_name("é", "é".encode()) == "é"


def test_the_chosen_token_is_among_the_top_of_completions() -> None:
    entry = TextLogprob(97, "a", b"a", -3.0, 4, (TopLogprob(98, "b", b"b", -0.1),))
    reply = completion_logprobs([entry], num_top=1, offset=10)
    assert reply.top_logprobs == [{"b": -0.1, "a": -3.0}]
    assert reply.text_offset == [14]


def test_usage_counts_a_prompt_once_and_every_choice() -> None:
    usage = UsageCounter([5, 7])
    for request_idx, index, completed, cached in [(0, 0, 1, 0), (0, 0, 4, 3), (0, 1, 2, 3), (1, 0, 10, 6)]:
        usage.add(TextDelta(request_idx, index, "", (), Usage(0, completed, cached)))
    reply = usage.reply()
    assert (reply.prompt_tokens, reply.completion_tokens, reply.total_tokens) == (12, 16, 28)
    assert reply.prompt_tokens_details.cached_tokens == 9
