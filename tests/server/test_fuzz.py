"""Whatever JSON comes, the status is never 5xx."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.server.requests import REQUEST_KINDS
from tests.fakes.fake_server import CHAT, COMPLETIONS, Served

PATHS = (CHAT, COMPLETIONS, "/tokenize", "/detokenize")
FIELDS = sorted({name for kind in REQUEST_KINDS for name in kind.__struct_fields__})

numbers = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([2**31, -(2**31), 2**63, 2**64, -(2**64), 10**40]),
    st.floats(),
    st.booleans(),
)
texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "user", "text", "<|turn|>", "say:🙂;", "\0", "\ud800"])
)
leaves = st.one_of(st.none(), numbers, texts)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(texts, st.sampled_from(FIELDS), st.just("5")), inner, max_size=4),
    ),
    max_leaves=12,
)
plausible_message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "tool", "x"]),
        "content": st.one_of(texts, values),
    },
    optional={"name": values, "tool_calls": values, "tool_call_id": values},
)
# Enough good fields that the odd one is what decides.
plausible = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.one_of(texts, st.lists(st.integers(-1, 300), max_size=5), values),
        "messages": st.one_of(st.lists(plausible_message, max_size=3), values),
        "tokens": st.lists(st.one_of(st.integers(-1, 300), values), max_size=5),
        "max_tokens": st.one_of(st.integers(1, 4), values),
        "stream": st.one_of(st.booleans(), values),
        "n": st.one_of(st.integers(1, 3), values),
        "stop": st.one_of(texts, st.lists(texts, max_size=3), values),
        "logprobs": st.one_of(st.integers(0, 3), st.booleans(), values),
        "echo": st.one_of(st.booleans(), values),
        "logit_bias": st.dictionaries(st.integers(-1, 300).map(str), numbers, max_size=3),
        "chat_template_kwargs": values,
    },
)
bodies = st.one_of(
    plausible,
    st.builds(lambda body, name, value: {**body, name: value}, plausible, st.sampled_from(FIELDS), values),
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=5),
    values,
)


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(path=st.sampled_from(PATHS), body=bodies)
def test_json_bodies(shared: Served, path: str, body: Any) -> None:
    reply = shared.http.post(path, content=json.dumps(body).encode())
    assert reply.status_code in (200, 400, 404), reply.text
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]
    elif reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in reply.text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=60))
def test_bytes(shared: Served, path: str, body: bytes) -> None:
    assert shared.http.post(path, content=body).status_code == 400


@pytest.mark.parametrize("path", PATHS)
def test_the_server_still_works(shared: Served, path: str) -> None:
    good = {
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [97]},
        CHAT: {},
        COMPLETIONS: {"prompt": "a"},
    }
    body: dict[str, Any] = dict(good[path])
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": "a"}]
    if path in (CHAT, COMPLETIONS):
        body["max_tokens"] = 2
    assert shared.post(path, **body).status_code == 200
    assert shared.client.num_running == 0
