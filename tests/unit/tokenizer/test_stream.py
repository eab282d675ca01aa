from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.tokenizer import TextStream, Tokenizer
from plait.tokenizer.stops import StopMatcher

# Byte-level token ids 4..259 are the single bytes in vocabulary order; this reaches every byte sequence.
any_bytes = st.binary(max_size=40)
any_ids = st.lists(st.integers(0, 270), max_size=40)
stops = st.lists(st.text(alphabet="ab🙂é", min_size=1, max_size=4), max_size=4)
stop_text = st.text(alphabet="ab🙂é", max_size=40)


def pushed(stream: TextStream, parts: Iterator[list[int]] | list[list[int]]) -> list[str]:
    return [*(stream.push(part) for part in parts), stream.finish()]


def cut_at(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(bounds)]


def ids_of_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    single = {tokenizer.token_bytes(i): i for i in range(4, 260)}
    return [single[data[i : i + 1]] for i in range(len(data))]


def reference_stop(data: bytes, stops: list[str]) -> tuple[bytes, str | None]:
    """The stop string that ends first, the longest of those; by looking at every end."""
    for end in range(1, len(data) + 1):
        ending = [stop for stop in stops if data[:end].endswith(stop.encode())]
        if ending:
            longest = max(ending, key=lambda stop: len(stop.encode()))
            return data[: end - len(longest.encode())], longest
    return data, None


@settings(deadline=None)
@given(any_ids, st.lists(st.integers(0, 100), max_size=6))
def test_joined_deltas_equal_decode(byte_level: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    assert "".join(pushed(TextStream(byte_level), cut_at(ids, cuts))) == byte_level.decode(ids)
    stream = TextStream(byte_level, skip_special_tokens=False)
    expected = byte_level.decode(ids, skip_special_tokens=False)
    assert "".join(pushed(stream, [[token_id] for token_id in ids])) == expected


@settings(deadline=None)
@given(any_bytes)
def test_invalid_bytes_are_replaced_as_a_whole_decode_would(byte_level: Tokenizer, data: bytes) -> None:
    ids = ids_of_bytes(byte_level, data)
    stream = TextStream(byte_level)
    assert "".join(pushed(stream, [[i] for i in ids])) == data.decode("utf-8", errors="replace")


@settings(max_examples=300, deadline=None)
@given(stop_text, stops, st.booleans(), st.lists(st.integers(0, 100), max_size=6))
def test_stop_strings_do_not_depend_on_the_cut(
    byte_level: Tokenizer, text: str, stops: list[str], include_stop: bool, cuts: list[int]
) -> None:
    expected, found = reference_stop(text.encode(), stops)
    if found is not None and include_stop:
        expected += found.encode()
    for ids in (byte_level.encode(text), ids_of_bytes(byte_level, text.encode())):
        for parts in (cut_at(ids, cuts), [[i] for i in ids], [ids]):
            stream = TextStream(byte_level, stop=stops, include_stop=include_stop)
            assert "".join(pushed(stream, parts)) == expected.decode()
            assert stream.stopped_by == found


@settings(max_examples=300, deadline=None)
@given(stop_text, stops)
def test_holds_back_exactly_the_longest_live_match(
    byte_level: Tokenizer, text: str, stops: list[str]
) -> None:
    stream = TextStream(byte_level, stop=stops)
    given_text = ""
    data = b""
    for token_id in ids_of_bytes(byte_level, text.encode()):
        given_text += stream.push([token_id])
        data += byte_level.token_bytes(token_id)
        if stream.stopped_by is not None:
            return
        beginnings = [stop.encode()[:k] for stop in stops for k in range(1, len(stop.encode()))]
        live = max((len(part) for part in beginnings if data.endswith(part)), default=0)
        assert given_text == data[: len(data) - live].decode("utf-8", errors="ignore")


@pytest.mark.parametrize("cut", range(1, 4))
def test_emoji_comes_whole(byte_level: Tokenizer, cut: int) -> None:
    ids = ids_of_bytes(byte_level, "🙂".encode())
    stream = TextStream(byte_level)
    assert stream.push(ids[:cut]) == ""
    assert stream.push(ids[cut:]) == "🙂"
    assert stream.finish() == ""


def test_unfinished_code_point_comes_at_the_end(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level)
    assert stream.push(ids_of_bytes(byte_level, "a🙂".encode()[:-1])) == "a"
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_partial_stop_is_given_when_it_fails_or_at_the_end(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, stop=["END"])
    assert stream.push(byte_level.encode("xEN")) == "x"
    assert stream.push(byte_level.encode("Q")) == "ENQ"
    assert stream.push(byte_level.encode("E")) == ""
    assert stream.finish() == "E"
    assert stream.stopped_by is None


def test_nothing_comes_after_the_stop(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, stop=["", "b"])
    ids = byte_level.encode("a b c")
    assert stream.push(ids) == "a "
    assert stream.stopped_by == "b"
    assert stream.num_tokens == 3
    assert stream.push(ids) == ""
    assert stream.finish() == ""


def test_special_tokens_inside_do_not_break_a_stop(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, stop=["ab"])
    assert stream.push([*byte_level.encode("xa"), 0, *byte_level.encode("b")]) == "x"
    assert stream.stopped_by == "ab"


def test_stop_may_be_a_special_token_that_is_shown(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, stop=["<|im_end|>"], skip_special_tokens=False)
    assert stream.push([*byte_level.encode("hello"), 2]) == "hello"
    assert stream.stopped_by == "<|im_end|>"


class TestLeadingSpace:
    def test_dropped_at_the_start_of_a_sequence(self, sentencepiece: Tokenizer) -> None:
        ids = sentencepiece.encode("abc abc", add_special=False)
        for prompt in ([], [1]):
            assert "".join(pushed(TextStream(sentencepiece, prompt_ids=prompt), [ids])) == "abc abc"

    def test_kept_after_a_prompt(self, sentencepiece: Tokenizer) -> None:
        prompt = sentencepiece.encode("ab")
        ids = sentencepiece.encode("abc", add_special=False)
        text = "".join(pushed(TextStream(sentencepiece, prompt_ids=prompt), [ids]))
        whole = sentencepiece.decode([*prompt, *ids])
        assert text == whole[len(sentencepiece.decode(prompt)) :] == " abc"

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 300), max_size=30), st.integers(0, 30))
    def test_prompt_and_continuation_make_the_whole(
        self, sentencepiece: Tokenizer, ids: list[int], cut: int
    ) -> None:
        prompt, rest = ids[:cut], ids[cut:]
        data = b"".join(sentencepiece.visible_bytes(i, True) for i in prompt)
        try:
            data.decode()
        except UnicodeDecodeError:
            return  # the cut is inside a code point: no text of its own
        text = "".join(pushed(TextStream(sentencepiece, prompt_ids=prompt), [[i] for i in rest]))
        assert sentencepiece.decode(prompt) + text == sentencepiece.decode(ids)


def test_work_per_token_is_constant(byte_level: Tokenizer, cpu_seconds: Callable[[], float]) -> None:
    """Quadratic behaviour would take minutes here."""
    stream = TextStream(byte_level, stop=["a" * 2_000 + "b", "aab" * 100])
    ids = byte_level.encode("a" * 100)
    for _ in range(1_000):
        stream.push(ids)
    assert stream.stopped_by is None
    assert cpu_seconds() < 5


def test_matcher_finds_the_stop_that_ends_first() -> None:
    matcher = StopMatcher(("abcd", "bc", "c"))
    state = 0
    for byte in b"abc":
        assert matcher.match[state] is None
        state = matcher.step(state, byte)
    assert matcher.match[state] == "bc"
