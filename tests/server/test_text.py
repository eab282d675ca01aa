"""Joined deltas = unstreamed text = decode(ids), whatever the tokens cut apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.fake_server import COMPLETIONS, Served
from tests.fakes.fake_tokenizer import EOS, FakeTokenizer

TOKENIZER = FakeTokenizer()
texts = st.text(st.characters(exclude_characters=";", exclude_categories=["Cs"]), max_size=12)
stops = st.lists(st.text(st.sampled_from("ab🙂é\n"), min_size=1, max_size=3), max_size=3)


def joined(events: list[Any]) -> tuple[str, list[str]]:
    choices = [event["choices"][0] for event in events[:-1]]
    return (
        "".join(choice["text"] for choice in choices),
        [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts)
def test_streamed_is_unstreamed_is_decoded(shared: Served, text: str) -> None:
    body = {"prompt": f"say:{text};", "max_tokens": 100}
    streamed, reasons = joined(shared.events(COMPLETIONS, **body))
    assert streamed == text
    assert reasons == ["stop"]
    assert shared.post(COMPLETIONS, **body).json()["choices"][0]["text"] == text
    assert TOKENIZER.decode([*text.encode(), EOS]) == text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, st.integers(1, 20))
def test_a_cut_inside_a_code_point(shared: Served, text: str, max_tokens: int) -> None:
    body = {"prompt": f"say:{text};", "max_tokens": max_tokens}
    streamed, reasons = joined(shared.events(COMPLETIONS, **body))
    expected = TOKENIZER.decode([*text.encode(), EOS][:max_tokens])
    assert streamed == expected
    assert shared.post(COMPLETIONS, **body).json()["choices"][0]["text"] == expected
    assert len(reasons) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.sampled_from("ab🙂é\n"), max_size=15), stops)
def test_stop_strings(shared: Served, text: str, stop: list[str]) -> None:
    body = {"prompt": f"say:{text};", "max_tokens": 100, "stop": stop}
    streamed, reasons = joined(shared.events(COMPLETIONS, **body))
    ends = [text.find(s) + len(s) for s in stop if s in text]
    expected = text
    if ends:
        end = min(ends)
        expected = text[: end - max(len(s) for s in stop if s in text and text.find(s) + len(s) == end)]
    assert streamed == expected
    assert reasons == ["stop"]
    assert shared.post(COMPLETIONS, **body).json()["choices"][0]["text"] == expected


@pytest.mark.parametrize(
    "text",
    [
        "👩‍👩‍👧‍👦 family",
        "日本語のテキスト",
        "e\u0301 combining",
        "\U0001f1e9\U0001f1ea flag",
        "\x85\u2028\u2029\x0b\x1c\r\n",
    ],
)
def test_only_whole_code_points_are_sent(shared: Served, text: str) -> None:
    events = shared.events(COMPLETIONS, prompt=f"say:{text};", max_tokens=200)
    pieces = [event["choices"][0]["text"] for event in events[:-1]]
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_bytes_that_are_no_text_become_replacement_marks(shared: Served) -> None:
    body = {"prompt": [*b"say:a\xff\xf0\x9fb;"], "max_tokens": 50}
    streamed, _ = joined(shared.events(COMPLETIONS, **body))
    assert streamed == shared.post(COMPLETIONS, **body).json()["choices"][0]["text"]
    assert streamed == b"a\xff\xf0\x9fb".decode(errors="replace")
