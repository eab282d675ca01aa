"""When something fails in the middle: a stream says so and ends properly, a whole reply is an error."""

from __future__ import annotations

import threading
from typing import Any

import openai
import pytest

from tests.fakes.fake_client import FakeClient
from tests.fakes.fake_server import CHAT, COMPLETIONS, Served, serve_fake, wait_until

CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}


def reasons_of(events: list[Any]) -> dict[int, list[str]]:
    """The finish reasons of every choice."""
    reasons: dict[int, list[str]] = {}
    for event in events:
        for choice in event.get("choices", []) if isinstance(event, dict) else []:
            if choice["finish_reason"] is not None:
                reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    return reasons


@pytest.mark.parametrize(("path", "body"), [(CHAT, CHAT_BODY), (COMPLETIONS, {"prompt": "a"})])
@pytest.mark.parametrize("n", [1, 3])
def test_stream_ends_with_error_event_reasons_and_done(
    fake: Served, path: str, body: dict[str, Any], n: int
) -> None:
    fake.client.fail_after = 5
    events = fake.events(path, **body, n=n)
    assert events[-1] == "[DONE]"
    errors = [event for event in events if "error" in event]
    assert len(errors) == 1
    assert errors[0]["error"]["code"] == "engine_error"
    assert errors[0]["error"]["type"] == "server_error"
    assert events.index(errors[0]) == len(events) - 2 - n  # then one last chunk per choice
    assert reasons_of(events) == {idx: ["error"] for idx in range(n)}
    assert fake.client.num_running == 0


def test_choices_that_were_finished_keep_their_reason(fake: Served) -> None:
    fake.client.fail_after = 8
    events = fake.events(COMPLETIONS, prompt=["say:abc;", "endless"], max_tokens=20)
    assert reasons_of(events) == {0: ["stop"], 1: ["error"]}


def test_the_official_client_raises(fake: Served) -> None:
    fake.client.fail_after = 3
    stream = fake.openai.completions.create(model="fake", prompt="a", stream=True)
    with pytest.raises(openai.APIError, match="the engine stopped"):
        list(stream)


def test_whole_reply_is_500(fake: Served) -> None:
    fake.client.fail_after = 3
    reply = fake.post(COMPLETIONS, prompt="a")
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "engine_error"


def test_failure_of_one_request_spares_the_next(fake: Served) -> None:
    fake.client.fail_after = 3
    assert fake.post(COMPLETIONS, prompt="a").status_code == 500
    fake.client.fail_after = None
    assert fake.post(COMPLETIONS, prompt="a", max_tokens=2).status_code == 200


def test_dead_engine(fake: Served) -> None:
    with fake.http.stream(
        "POST", COMPLETIONS, json={"prompt": "a", "stream": True, "max_tokens": 500}
    ) as reply:
        lines = reply.iter_lines()
        next(lines)
        fake.client.die()
        assert "data: [DONE]" in list(lines)
    refused = fake.post(COMPLETIONS, prompt="a")
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_dead"
    assert int(refused.headers["retry-after"]) >= 1
    assert fake.http.get("/health/live").status_code == 503


@pytest.mark.parametrize("place", ["encode_text", "build_request"])
def test_a_bug_is_a_500_without_details(
    fake: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise KeyError("secret prompt text")

    monkeypatch.setattr(fake.server.state.frontend, place, fail)
    reply = fake.post(COMPLETIONS, prompt="a")
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert "secret" not in reply.text
    assert "secret" not in caplog.text
    assert "KeyError" in caplog.text


def test_a_bug_while_streaming_still_ends_the_stream(fake: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> bytes:
        raise KeyError("secret")

    monkeypatch.setattr("plait.server.streaming.chat_logprobs", fail)
    events = fake.events(CHAT, **CHAT_BODY, logprobs=True)
    assert events[-1] == "[DONE]"
    assert [event["error"]["code"] for event in events[:-1] if "error" in event] == ["internal_error"]
    assert reasons_of(events) == {0: ["error"]}
    assert wait_until(lambda: fake.client.num_running == 0)


def test_overload_is_429_with_retry_after() -> None:
    with serve_fake(engine={"max_queued": 2, "step_s": 0.01}) as fake:
        threads = [
            threading.Thread(target=fake.post, args=(COMPLETIONS,), kwargs={"prompt": "a", "max_tokens": 500})
            for _ in "ab"
        ]
        for thread in threads:
            thread.start()
        assert wait_until(lambda: fake.client.num_running == 2)
        for stream in (False, True):
            reply = fake.post(COMPLETIONS, prompt="b", stream=stream)
            assert reply.status_code == 429
            assert reply.headers["retry-after"] == "2"
            assert reply.json()["error"]["type"] == "rate_limit_error"
            assert reply.json()["error"]["code"] == "overloaded"
        with pytest.raises(openai.RateLimitError):
            fake.openai.completions.create(model="fake", prompt="a")
        for thread in threads:
            thread.join()
        assert fake.post(COMPLETIONS, prompt="b", max_tokens=1).status_code == 200


def test_overload_in_the_middle_of_a_prompt_list_leaves_nothing_running() -> None:
    with serve_fake(engine={"max_queued": 2, "step_s": 0.01}) as fake:
        client: FakeClient = fake.client
        assert fake.post(COMPLETIONS, prompt=["a", "b", "c"], max_tokens=500).status_code == 429
        assert wait_until(lambda: client.num_running == 0)
        assert len(client.aborted) == 2
