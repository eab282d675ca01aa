"""Every field of a request, with values that clients really send and values that they should not."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.errors import InvalidRequestError
from plait.types import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    EngineInfo,
    GenerateRequest,
    SamplingParams,
)
from plait.validation import resolve_max_tokens, validate_request

INFO = EngineInfo("m", "llama", 100, 64, (2,), 10, 4, 2, "avx2")
NAN, INF = float("nan"), float("inf")


def make(**fields: Any) -> GenerateRequest:
    envelope = {f.name for f in msgspec.structs.fields(GenerateRequest)}
    own = {name: fields.pop(name) for name in list(fields) if name in envelope}
    return GenerateRequest(**{"prompt_token_ids": (1, 2, 3), "sampling": SamplingParams(**fields), **own})


def refused(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        validate_request(make(**fields), INFO)
    assert caught.value.message.startswith(str(caught.value.param)) or caught.value.code != "invalid_value"
    assert len(caught.value.message) < 400
    return caught.value


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0},
        {"temperature": 2.0},
        {"top_k": -1},
        {"top_k": 50},
        {"top_p": 0.1, "min_p": 1.0},
        {"seed": -(2**63)},
        {"seed": 2**64 - 1},
        {"n": MAX_N},
        {"max_tokens": None},
        {"max_tokens": 1, "min_tokens": 1},
        {"stop": ("a", "\n"), "stop_token_ids": (0, 99)},
        {"stop": ["a", "\n"], "stop_token_ids": [0, 99]},
        {"stop": "abc"},
        {"logprobs": 0, "prompt_logprobs": MAX_LOGPROBS},
        {"logit_bias": ((5, -100), (6, 100.0))},
        {"logit_bias": {5: -100, 6: 100.0}},
        {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.3},
        {"deadline_s": 0.5, "priority": -3, "tenant": "x"},
        {"produced_token_ids": (4, 5)},
        {"prompt_token_ids": [1, 2]},
    ],
)
def test_good_requests_pass(fields: dict[str, Any]) -> None:
    validate_request(make(**fields), INFO)


BAD: list[tuple[str, Any]] = [
    *[
        ("prompt_token_ids", x)
        for x in ((), (1, -1), (100,), (True,), (1.0,), ("a",), None, "abc", 7, (2**70,))
    ],
    *[("temperature", x) for x in (NAN, INF, -0.1, 101, True, "1", None, 10**400)],
    *[("top_p", x) for x in (0.0, 1.1, NAN, -INF, False)],
    *[("top_k", x) for x in (-2, 1.5, True, 2**31)],
    *[("min_p", x) for x in (-0.1, 1.1, NAN)],
    *[("repetition_penalty", x) for x in (0.0, -1.0, NAN, INF)],
    *[("presence_penalty", x) for x in (2.1, NAN, "0")],
    *[("frequency_penalty", x) for x in (-2.1, NAN)],
    *[("seed", x) for x in (2**64, -(2**63) - 1, 1.0, True)],
    *[("n", x) for x in (0, -1, MAX_N + 1, 1.0, True, None, 10**5000)],
    *[("max_tokens", x) for x in (0, -1, 2**31, 1.0, True)],
    *[("min_tokens", x) for x in (-1, 17, 1.0)],
    *[("ignore_eos", x) for x in (1, None)],
    ("include_stop_str_in_output", 0),
    ("skip_special_tokens", "yes"),
    *[("stop", x) for x in (("",), ("a",) * (MAX_STOP_STRINGS + 1), 5, (1,), ("x" * 5000,), ("a\ud800",))],
    *[("stop_token_ids", x) for x in ((100,), (-1,), (True,), (1,) * 1025, 5)],
    *[("logprobs", x) for x in (-1, MAX_LOGPROBS + 1, True, 1.0)],
    *[("prompt_logprobs", x) for x in (-1, MAX_LOGPROBS + 1, True)],
    *[
        ("logit_bias", x)
        for x in (
            ((100, 1.0),),
            ((5, 101),),
            ((5, NAN),),
            ((5, 1.0), (5, 2.0)),
            ((True, 1.0),),
            ((5,),),
            {5: 101.0},
            5,
            tuple((0, 1.0) for _ in range(MAX_LOGIT_BIAS + 1)),
        )
    ],
    *[("deadline_s", x) for x in (0, -1.0, NAN, INF, True)],
    *[("priority", x) for x in (1.0, True, 2**40)],
    *[("tenant", x) for x in (None, 5, "x" * 1000)],
    *[("produced_token_ids", x) for x in ((100,), tuple(range(16)))],
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=[f"{field}-{i}" for i, (field, _) in enumerate(BAD)])
def test_bad_values_name_their_field(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert error.param == ("prompt" if field == "prompt_token_ids" else field)
    assert error.code == "invalid_value"


def test_sampling_params_of_lists_are_those_of_tuples() -> None:
    listed = SamplingParams(stop=["a"], stop_token_ids=[1, 2], logit_bias={5: 1.0})  # type: ignore[arg-type]
    assert listed == SamplingParams(stop=("a",), stop_token_ids=(1, 2), logit_bias=((5, 1.0),))
    assert len({listed, SamplingParams(stop="a"), SamplingParams(stop=("a",))}) == 2  # type: ignore[arg-type]


def test_produced_tokens_need_a_single_plain_choice() -> None:
    assert refused(produced_token_ids=(1,), n=2).param == "produced_token_ids"
    assert refused(produced_token_ids=(1,), prompt_logprobs=1).param == "produced_token_ids"


def test_objects_of_other_types_are_refused() -> None:
    for bad in (None, {"prompt_token_ids": (1,)}, 5):
        with pytest.raises(InvalidRequestError):
            validate_request(bad, INFO)  # type: ignore[arg-type]
    assert refused(sampling={"n": 1}).param == "sampling"


def test_too_long_names_both_numbers() -> None:
    wide = msgspec.structs.replace(INFO, num_kv_blocks=1000)
    for fields, param, needed in [
        ({"prompt_token_ids": (1,) * 64}, "prompt", 80),
        ({"prompt_token_ids": (1,) * 64, "max_tokens": None}, "prompt", 65),
        ({"prompt_token_ids": (1,) * 60, "max_tokens": 5}, "max_tokens", 65),
    ]:
        with pytest.raises(InvalidRequestError) as caught:
            validate_request(make(**fields), wide)
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == param
        assert "64 tokens" in caught.value.message
        assert str(needed) in caught.value.message
    validate_request(make(prompt_token_ids=(1,) * 60, max_tokens=4), wide)
    validate_request(make(prompt_token_ids=(1,) * 63, max_tokens=None), wide)


def test_what_can_never_fit_the_pool_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        validate_request(make(prompt_token_ids=(1,) * 30, max_tokens=20), INFO)
    assert caught.value.code == "kv_cache_exceeded"
    assert caught.value.param == "max_tokens"
    assert "13 KV cache blocks" in caught.value.message
    assert "pool has 10" in caught.value.message
    # 10 blocks of 4 hold 40 positions, and the last token is never written.
    validate_request(make(prompt_token_ids=(1,) * 30, max_tokens=11), INFO)
    assert resolve_max_tokens(make(prompt_token_ids=(1,) * 30, max_tokens=None), INFO) == 11
    assert resolve_max_tokens(make(max_tokens=7), INFO) == 7


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=2), st.none()), max_size=3),
    st.tuples(st.tuples(st.integers(), st.floats())),
    st.dictionaries(st.integers(), st.floats(), max_size=2),
)
FIELDS = [f.name for f in dataclasses.fields(SamplingParams)] + [
    "prompt_token_ids",
    "tenant",
    "priority",
    "deadline_s",
    "produced_token_ids",
]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=4))
def test_junk_is_accepted_or_refused_but_never_crashes(fields: dict[str, Any]) -> None:
    request = make(**fields)
    refusal = None
    try:
        validate_request(request, INFO)
    except InvalidRequestError as error:
        refusal = error
    if refusal is None:
        assert resolve_max_tokens(request, INFO) >= 1
    else:
        assert refusal.param
