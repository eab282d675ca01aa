from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from plait.errors import ModelFileError
from plait.tokenizer import Span, Tokenizer, bpe
from plait.tokenizer.spm import SentencePieceModel
from plait.tokenizer.vocab import VocabularyDefaults, read_vocabulary

Metadata = dict[str, object]
CONTROL = 3


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in ids]


class TestByteLevel:
    def test_merges_words(self, byte_level: Tokenizer) -> None:
        assert texts(byte_level, byte_level.encode("hello world")) == ["hello", " world"]

    def test_digits_stand_alone_although_a_merge_exists(self, byte_level: Tokenizer) -> None:
        assert texts(byte_level, byte_level.encode("123")) == ["1", "2", "3"]

    def test_pre_tokenizer_decides(self, byte_level_metadata: Metadata) -> None:
        byte_level_metadata["tokenizer.ggml.pre"] = "gpt-2"
        tokenizer = Tokenizer.from_metadata(byte_level_metadata)
        assert texts(tokenizer, tokenizer.encode("123")) == ["123"]

    @settings(deadline=None)
    @given(st.text(max_size=80))
    def test_decode_gives_any_text_back(self, byte_level: Tokenizer, text: str) -> None:
        expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        assert (
            byte_level.decode(byte_level.encode(text, parse_special=True), skip_special_tokens=False)
            == expected
        )

    def test_byte_without_token_is_dropped_and_still_separates(self, byte_level_metadata: Metadata) -> None:
        tokens = byte_level_metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        tokens[tokens.index("z")] = "[UNUSED]"
        tokenizer = Tokenizer.from_metadata(byte_level_metadata)
        assert texts(tokenizer, tokenizer.encode("hezllo")) == ["he", "ll", "o"]
        assert max(tokenizer.encode("zzz hezllo")) < tokenizer.vocab_size

    @pytest.mark.parametrize(("name", "what"), [("never-heard-of", "never-heard-of"), (None, "names no")])
    def test_unknown_pre_tokenizer_is_loud(
        self, byte_level_metadata: Metadata, caplog: pytest.LogCaptureFixture, name: str | None, what: str
    ) -> None:
        byte_level_metadata["tokenizer.ggml.pre"] = name
        with caplog.at_level(logging.WARNING, "plait.tokenizer"):
            tokenizer = Tokenizer.from_metadata(byte_level_metadata)
        assert what in tokenizer.warning
        assert what in caplog.text

    def test_known_pre_tokenizer_has_no_warning(self, byte_level: Tokenizer) -> None:
        assert byte_level.warning == ""

    def test_useless_merges_are_ignored(self, byte_level_metadata: Metadata) -> None:
        merges = byte_level_metadata["tokenizer.ggml.merges"]
        assert isinstance(merges, list)
        merges[:0] = ["q z", "nospace", "", "h e"]
        tokenizer = Tokenizer.from_metadata(byte_level_metadata)
        assert texts(tokenizer, tokenizer.encode("hello")) == ["hello"]

    @given(
        st.lists(
            st.sampled_from(
                [
                    "a b",
                    "b c",
                    "ab c",
                    "a bc",
                    "c a",
                    "ab",
                    " a b",
                    "a  b",
                    "a b c",
                    "a\u00a0b",
                    "a ",
                    "",
                    " ",
                ]
            )
        )
    )
    @settings(max_examples=200)
    def test_merges_are_the_same_however_they_are_read(self, merges: list[str]) -> None:
        ids = {text: i for i, text in enumerate(["a", "b", "c", "ab", "bc", "abc"])}
        careful = models.BPE(vocab=ids, merges=bpe._read_merges(merges, ids))
        quick = bpe._new_bpe(merges, ids, ignore_merges=False)
        assert tokenizers.Tokenizer(quick).to_str() == tokenizers.Tokenizer(careful).to_str()

    def test_lone_surrogate_becomes_the_replacement_character(self, byte_level: Tokenizer) -> None:
        assert byte_level.decode(byte_level.encode("a\ud800b")) == "a\ufffdb"


class TestSentencePiece:
    def test_space_prefix_and_bos(self, sentencepiece: Tokenizer) -> None:
        ids = sentencepiece.encode("abc abc")
        assert texts(sentencepiece, ids) == ["<s>", " abc", " abc"]
        assert sentencepiece.decode(ids) == "abc abc"

    def test_no_space_prefix_when_the_file_says_so(self, sentencepiece_metadata: Metadata) -> None:
        sentencepiece_metadata["tokenizer.ggml.add_space_prefix"] = False
        tokenizer = Tokenizer.from_metadata(sentencepiece_metadata)
        assert texts(tokenizer, tokenizer.encode("abc", add_special=False)) == ["abc"]
        assert tokenizer.decode(tokenizer.encode(" abc")) == " abc"

    def test_unknown_characters_fall_back_to_bytes(self, sentencepiece: Tokenizer) -> None:
        ids = sentencepiece.encode("🙂", add_special=False)
        assert [sentencepiece.token_bytes(i) for i in ids] == [b" ", *(bytes([b]) for b in "🙂".encode())]

    def test_control_tokens_cannot_be_merged_from_text(self, sentencepiece_metadata: Metadata) -> None:
        tokens, scores = (sentencepiece_metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores"))
        types = sentencepiece_metadata["tokenizer.ggml.token_type"]
        assert isinstance(tokens, list)
        assert isinstance(scores, list)
        assert isinstance(types, list)
        for token, kind in (("<s", 1), ("<s>", CONTROL)):
            if token not in tokens:
                tokens.append(token)
                types.append(kind)
                scores.append(0.0)
        tokenizer = Tokenizer.from_metadata(sentencepiece_metadata)
        assert 1 not in tokenizer.encode("<s>", add_special=False)
        assert 1 in tokenizer.encode("<s>", add_special=False, parse_special=True)

    @settings(deadline=None)
    @given(st.text(alphabet="abcé字z <", max_size=60))
    def test_decode_gives_text_back(self, sentencepiece: Tokenizer, text: str) -> None:
        assert sentencepiece.decode(sentencepiece.encode(text)) == text

    def test_long_runs_are_quick(self, sentencepiece: Tokenizer, cpu_seconds: Callable[[], float]) -> None:
        for piece in ("a", " ", "ab", "字", "🙂"):
            sentencepiece.encode(piece * 40_000)
        assert cpu_seconds() < 6


def reference_spm(ids: dict[str, int], scores: list[float], text: str) -> list[str]:
    """The definition, in quadratic time: the best pair, the leftmost of equals."""
    pieces = list(text)
    while True:
        best = (-math.inf, 0)
        for i in range(len(pieces) - 1):
            joined = pieces[i] + pieces[i + 1]
            if joined in ids and scores[ids[joined]] > best[0]:
                best = (scores[ids[joined]], i)
        if best[0] == -math.inf:
            return pieces
        i = best[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.text(alphabet="abc ", max_size=40))
def test_spm_equals_definition_on_random_vocabularies(seed: int, text: str) -> None:
    rng = random.Random(seed)
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + list("abc▁")
    pieces = {"".join(rng.choices("abc▁", k=rng.randint(2, 5))) for _ in range(rng.randint(1, 30))}
    tokens += sorted(pieces)
    # Few distinct scores: ties must go to the leftmost pair.
    scores = [float(rng.randint(-4, 0)) for _ in tokens]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [6] * 256 + [1] * (len(tokens) - 256),
    }
    vocabulary = read_vocabulary(metadata, VocabularyDefaults())
    model = SentencePieceModel(vocabulary, scores)
    marked = text.replace(" ", "▁")
    assert [tokens[i] for i in model.encode(text)] == reference_spm(dict(vocabulary.ids), scores, marked)


@settings(deadline=None)
@given(st.text(alphabet="abcé字 <hello", max_size=200))
def test_lower_bound_of_tokens(byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    for tokenizer in (byte_level, sentencepiece):
        assert tokenizer.min_num_tokens(text) <= len(tokenizer.encode(text))
        assert tokenizer.min_num_tokens("a" * 10_000) > 100


class TestSpecialTokens:
    def test_typed_control_token_is_text_unless_parsed(self, byte_level: Tokenizer) -> None:
        assert 2 not in byte_level.encode("x<|im_end|>")
        assert byte_level.encode("x<|im_end|>", parse_special=True)[-1] == 2

    def test_user_defined_token_is_always_found(self, byte_level: Tokenizer) -> None:
        assert 3 in byte_level.encode("a<tool>b")
        assert byte_level.decode([3]) == "<tool>"

    def test_spans_decide(self, byte_level: Tokenizer) -> None:
        spans = [Span("<|im_start|>", True), Span("<|im_end|>", False), Span("<|im_end|>", True)]
        ids = byte_level.encode_spans(spans)
        assert (ids[0], ids[-1], ids.count(2)) == (1, 2, 1)

    @pytest.mark.parametrize("cut", range(1, len("<|im_end|>")))
    @pytest.mark.parametrize("is_first_trusted", [True, False])
    def test_token_across_a_trust_border_is_text(
        self, byte_level: Tokenizer, cut: int, is_first_trusted: bool
    ) -> None:
        text = "<|im_end|>"
        spans = [Span(text[:cut], is_first_trusted), Span(text[cut:], not is_first_trusted)]
        assert 2 not in byte_level.encode_spans(spans)

    def test_template_may_write_a_token_in_pieces(self, byte_level: Tokenizer) -> None:
        assert byte_level.encode_spans([Span("<|im_", True), Span("", False), Span("end|>", True)]) == [2]

    def test_plain_text_merges_across_spans(self, byte_level: Tokenizer) -> None:
        assert texts(byte_level, byte_level.encode_spans([Span("he", True), Span("llo", False)])) == ["hello"]

    def test_ends_of_generation(self, byte_level: Tokenizer) -> None:
        assert byte_level.eos_token_ids == (2, 0)
        assert all(byte_level.is_special(i) for i in byte_level.eos_token_ids)
        assert not byte_level.is_special(3)
        assert not byte_level.is_special(-1)

    def test_end_of_turn_is_found_by_its_text(self, sentencepiece: Tokenizer) -> None:
        assert sentencepiece.eos_token_ids == (2, 3)

    def test_mistyped_end_token_is_treated_as_control(self, byte_level_metadata: Metadata) -> None:
        types = byte_level_metadata["tokenizer.ggml.token_type"]
        assert isinstance(types, list)
        types[2] = 4
        tokenizer = Tokenizer.from_metadata(byte_level_metadata)
        assert 2 not in tokenizer.encode("<|im_end|>")
        assert tokenizer.is_special(2)


def reference_split(ids: dict[str, int], text: str) -> list[str | int]:
    """Longest token first, each from left to right through what is still text."""
    fragments: list[str | int] = [text]
    for token in sorted(ids, key=lambda t: (-len(t.encode()), ids[t])):
        cut: list[str | int] = []
        for fragment in fragments:
            if isinstance(fragment, str):
                for k, piece in enumerate(fragment.split(token)):
                    cut += [ids[token]] * bool(k) + [piece]
            else:
                cut.append(fragment)
        fragments = cut
    return [fragment for fragment in fragments if fragment != ""]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), min_size=1, max_size=6, unique=True),
    st.text(alphabet="ab<c", max_size=40),
)
def test_special_tokens_are_cut_longest_first(tokens: list[str], text: str) -> None:
    from plait.tokenizer.specials import SpecialTokens

    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [CONTROL] * len(tokens)}
    vocabulary = read_vocabulary(metadata, VocabularyDefaults())
    found = SpecialTokens(vocabulary).split(text, [(0, len(text))] if text else [])
    assert found == reference_split(dict(vocabulary.ids), text)
    assert SpecialTokens(vocabulary).split(text, []) == ([text] if text else [])


class TestBosAndEos:
    def test_added_once(self, sentencepiece: Tokenizer) -> None:
        assert sentencepiece.encode("ab")[0] == 1
        assert sentencepiece.encode("ab", add_special=False)[0] != 1

    def test_not_doubled(self, sentencepiece: Tokenizer) -> None:
        assert sentencepiece.encode("<s>ab", parse_special=True).count(1) == 1
        assert sentencepiece.encode_spans([Span("<s>", True), Span("ab", False)]).count(1) == 1

    def test_typed_bos_does_not_replace_the_real_one(self, sentencepiece: Tokenizer) -> None:
        ids = sentencepiece.encode_spans([Span("<s>ab", False)])
        assert ids.count(1) == 1
        assert sentencepiece.decode(ids) == "<s>ab"

    def test_empty_text(self, sentencepiece: Tokenizer, byte_level: Tokenizer) -> None:
        assert sentencepiece.encode("") == [1]
        assert byte_level.encode("") == []

    def test_eos_when_the_file_says_so(self, sentencepiece_metadata: Metadata) -> None:
        sentencepiece_metadata["tokenizer.ggml.add_eos_token"] = True
        tokenizer = Tokenizer.from_metadata(sentencepiece_metadata)
        assert tokenizer.encode("ab")[-1] == 2
        assert tokenizer.encode("ab</s>", parse_special=True).count(2) == 1
        assert tokenizer.encode("ab", add_special=False)[-1] != 2


class TestDecode:
    def test_special_tokens_are_skipped_on_demand(self, byte_level: Tokenizer) -> None:
        ids = byte_level.encode("<|im_start|>hello<|im_end|>", parse_special=True)
        assert byte_level.decode(ids) == "hello"
        assert byte_level.decode(ids, skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"

    def test_partial_code_points_are_replaced(self, byte_level: Tokenizer) -> None:
        ids = byte_level.encode("🙂")
        assert byte_level.decode(ids[:-1]) == "\ufffd"
        assert b"".join(map(byte_level.token_bytes, ids)) == "🙂".encode()
        assert byte_level.token_text(ids[0]) == "\ufffd"

    @pytest.mark.parametrize("token_id", [-1, 10**9])
    def test_unknown_id(self, byte_level: Tokenizer, token_id: int) -> None:
        with pytest.raises(IndexError):
            byte_level.token_bytes(token_id)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", None),
        ("model", "wordpiece"),
        ("tokens", None),
        ("tokens", []),
        ("tokens", "abc"),
        ("tokens", ["a", 1]),
        ("token_type", [1]),
        ("token_type", ["x"] * 1000),
        ("merges", None),
        ("merges", [1]),
    ],
)
def test_damaged_byte_level_file_is_refused(byte_level_metadata: Metadata, key: str, value: object) -> None:
    byte_level_metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ModelFileError):
        Tokenizer.from_metadata(byte_level_metadata)


@pytest.mark.parametrize(("key", "value"), [("scores", None), ("scores", [1.0]), ("scores", "x")])
def test_damaged_sentencepiece_file_is_refused(
    sentencepiece_metadata: Metadata, key: str, value: object
) -> None:
    sentencepiece_metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ModelFileError):
        Tokenizer.from_metadata(sentencepiece_metadata)


@pytest.mark.parametrize("token_id", [-5, 10**7, "2", None, 1.5])
def test_special_id_outside_the_vocabulary_is_ignored(
    byte_level_metadata: Metadata, token_id: object
) -> None:
    byte_level_metadata["tokenizer.ggml.bos_token_id"] = token_id
    byte_level_metadata["tokenizer.ggml.add_bos_token"] = True
    tokenizer = Tokenizer.from_metadata(byte_level_metadata)
    assert tokenizer.bos_token_id in (None, 11)
    assert texts(tokenizer, tokenizer.encode("hello"))[-1] == "hello"
