"""Tokens to text: for any tokens, cut into any outputs, the deltas add up to the same reply."""

from __future__ import annotations

import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.frontend.choice import RequestText
from plait.frontend.delta import TextDelta
from plait.types import FinishReason, GenerateRequest, SamplingParams, TokenLogprob, TokenOutput
from tests.fakes.fake_tokenizer import BOS, EOS, FakeTokenizer

TOKENIZER = FakeTokenizer()
PROMPT = (BOS, *b"prompt")
# Letters that make stop strings likely, parts of code points, specials, and a byte that is never UTF-8.
TOKENS = st.lists(st.sampled_from([*b"abc", 259, 260, 261, BOS, 0xFF, *"é".encode()]), max_size=40)


def request_text(**sampling: object) -> RequestText:
    request = GenerateRequest(PROMPT, SamplingParams(**sampling))  # type: ignore[arg-type]
    return RequestText(TOKENIZER, request, 0, discard=False)  # type: ignore[arg-type]


def outputs_of(ids: list[int], cuts: list[int], **last: object) -> list[TokenOutput]:
    """One choice's outputs: ``ids`` cut at ``cuts``; the last one has a finish_reason."""
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    pieces = [tuple(ids[begin:end]) for begin, end in itertools.pairwise(bounds)] or [()]
    outputs = [TokenOutput(1, 0, piece, tuple(TokenLogprob(i, -1.0, 1) for i in piece)) for piece in pieces]
    end = TokenOutput(1, 0, (), finish_reason=FinishReason.LENGTH)
    fields = {"finish_reason": FinishReason.LENGTH, **last}
    if pieces[-1]:
        end = TokenOutput(1, 0, outputs[-1].token_ids, outputs[-1].logprobs, **fields)  # type: ignore[arg-type]
        outputs.pop()
    return [*outputs, end]


def feed_all(text: RequestText, outputs: list[TokenOutput]) -> list[TextDelta]:
    return [delta for output in outputs if (delta := text.feed(output)) is not None]


@settings(deadline=None, max_examples=100)
@given(TOKENS, st.lists(st.integers(0, 40)))
def test_joined_text_is_the_decoded_ids(ids: list[int], cuts: list[int]) -> None:
    deltas = feed_all(request_text(), outputs_of(ids, cuts))
    assert "".join(delta.text for delta in deltas) == TOKENIZER.decode(ids)
    assert [token for delta in deltas for token in delta.token_ids] == ids
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [FinishReason.LENGTH]
    assert deltas[-1].usage.completion_tokens == len(ids)
    assert [entry.token_id for delta in deltas for entry in delta.logprobs] == ids


@settings(deadline=None, max_examples=100)
@given(TOKENS, st.lists(st.integers(0, 40)), st.lists(st.sampled_from(["ab", "bca", "aé", "cc"]), max_size=3))
def test_stop_strings_do_not_depend_on_the_cuts(ids: list[int], cuts: list[int], stop: list[str]) -> None:
    whole = TOKENIZER.decode(ids)
    found = [(whole.index(word) + len(word), word) for word in stop if word in whole]
    text = request_text(stop=tuple(stop))
    deltas = feed_all(text, outputs_of(ids, cuts))
    joined = "".join(delta.text for delta in deltas)
    if not found:
        assert joined == whole
        assert deltas[-1].stop_reason is None
        return
    end, word = min(found, key=lambda item: (item[0], -len(item[1])))
    assert joined == whole[: end - len(word)]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, word)
    # Nothing of what came after the stop counts.
    used = deltas[-1].usage.completion_tokens
    assert TOKENIZER.decode(ids[:used]).startswith(whole[:end])
    assert not TOKENIZER.decode(ids[: used - 1]).startswith(whole[:end])
    assert sum(len(delta.logprobs) for delta in deltas) == used


def test_merged_deltas_are_the_sum() -> None:
    deltas = feed_all(request_text(), outputs_of([*b"hello"], [1, 2, 3, 4]))
    merged = deltas[0]
    for delta in deltas[1:]:
        merged = merged.then(delta)
    assert (merged.text, merged.token_ids) == ("hello", tuple(b"hello"))
    assert merged.finish_reason is FinishReason.LENGTH
    assert merged.usage.completion_tokens == len(merged.logprobs) == 5


def test_text_of_eos_and_stop_tokens_is_left_out() -> None:
    by_eos = outputs_of([*b"hi", EOS], [], finish_reason=FinishReason.STOP, stop_token_id=EOS)
    delta = feed_all(request_text(), by_eos)[-1]
    assert (delta.text, delta.stop_reason, delta.usage.completion_tokens) == ("hi", None, 3)
    by_token = outputs_of([*b"hi!"], [], finish_reason=FinishReason.STOP, stop_token_id=ord("!"))
    delta = feed_all(request_text(stop_token_ids=(33,)), by_token)[-1]
    assert (delta.text, delta.stop_reason, delta.usage.completion_tokens) == ("hi", 33, 3)
    kept = feed_all(request_text(stop_token_ids=(33,), include_stop_str_in_output=True), by_token)[-1]
    assert kept.text == "hi!"


def test_unfinished_code_point_is_held_back_and_shown_at_the_end() -> None:
    text = request_text()
    first = text.feed(TokenOutput(1, 0, (260,)))
    assert first is not None
    assert (first.text, first.token_ids) == ("", (260,))
    last = text.feed(TokenOutput(1, 0, (), finish_reason=FinishReason.LENGTH))
    assert last is not None
    assert last.text == "\ufffd"


def test_a_stopped_choice_takes_nothing_more_and_is_to_be_aborted() -> None:
    text = request_text(n=2, stop=("b",))
    assert text.feed(TokenOutput(1, 0, tuple(b"ab"))) is not None
    assert text.feed(TokenOutput(1, 0, tuple(b"more"))) is None
    assert (text.num_running, text.has_stopped_early) == (1, False)
    assert text.feed(TokenOutput(1, 1, tuple(b"xb"))) is not None
    assert (text.num_running, text.has_stopped_early) == (0, True)


def test_a_choice_that_the_engine_ended_needs_no_abort() -> None:
    text = request_text(stop=("b",))
    text.feed(TokenOutput(1, 0, tuple(b"ab"), finish_reason=FinishReason.LENGTH))
    assert (text.num_running, text.has_stopped_early) == (0, False)


def test_offsets_count_code_points_of_the_text() -> None:
    ids = [259, 260, 261, BOS, ord("x")]
    delta = feed_all(request_text(), outputs_of(ids, []))[-1]
    assert delta.text == "héllo🙂x"
    assert [entry.text_offset for entry in delta.logprobs] == [0, 5, 5, 6, 6]
    assert [entry.raw for entry in delta.logprobs][1:3] == [b"\xf0\x9f", b"\x99\x82"]


def test_offsets_without_the_space_that_is_dropped_at_the_start() -> None:
    class Spaced(FakeTokenizer):
        strips_first_space = True

    request = GenerateRequest((BOS,), SamplingParams(prompt_logprobs=0))
    text = RequestText(Spaced(), request, 0, discard=False)  # type: ignore[arg-type]
    delta = feed_all(text, outputs_of([*b" ab"], []))[-1]
    assert delta.text == "ab"
    assert [entry.text_offset for entry in delta.logprobs] == [0, 0, 1]


def test_prompt_logprobs_come_once() -> None:
    text = request_text(prompt_logprobs=1)
    entries = (None, *(TokenLogprob(i, -2.0, 3, ((i, -2.0),)) for i in PROMPT[1:]))
    first = text.feed(TokenOutput(1, 0, (97,), prompt_logprobs=entries))
    second = text.feed(TokenOutput(1, 0, (97,)))
    assert first is not None
    assert second is not None
    assert second.prompt_logprobs is None
    assert first.prompt_logprobs is not None
    assert [entry.logprob for entry in first.prompt_logprobs] == [None, *[-2.0] * 6]
    assert "".join(top.token for entry in first.prompt_logprobs for top in entry.top) == "prompt"
    assert [entry.text_offset for entry in first.prompt_logprobs] == [0, 0, 1, 2, 3, 4, 5]


def test_discarding_keeps_the_end_and_its_reason() -> None:
    request = GenerateRequest(PROMPT, SamplingParams())
    text = RequestText(TOKENIZER, request, 0, discard=True)  # type: ignore[arg-type]
    delta = text.feed(TokenOutput(1, 0, (97,), finish_reason=FinishReason.ERROR, error="broken"))
    assert delta is not None
    assert (delta.text, delta.token_ids, delta.usage.completion_tokens) == ("", (), 0)
    assert (delta.finish_reason, delta.error) == (FinishReason.ERROR, "broken")


@settings(deadline=None, max_examples=100)
@given(TOKENS, st.lists(st.integers(0, 40)), st.integers(0, 12))
def test_stop_strings_wait_for_min_tokens(ids: list[int], cuts: list[int], min_tokens: int) -> None:
    """The first token after them that completes a stop string ends the text, wherever the string began."""
    text = request_text(stop=("ab", "cc"), min_tokens=min_tokens, max_tokens=64)
    deltas = feed_all(text, outputs_of(ids, cuts))
    used = [token for delta in deltas for token in delta.token_ids]
    num_found = [
        len(re.findall("(?=ab|cc)", TOKENIZER.decode(ids[:number]))) for number in range(len(ids) + 1)
    ]
    ends = [
        number for number in range(min_tokens + 1, len(ids) + 1) if num_found[number] > num_found[number - 1]
    ]
    assert len(used) == (ends[0] if ends else len(ids))
    assert deltas[-1].finish_reason == (FinishReason.STOP if ends else FinishReason.LENGTH)
