"""POST /tokenize and /detokenize show the exact ids of a request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.fake_server import CHAT, COMPLETIONS, Served
from tests.fakes.fake_tokenizer import BOS, TURN

CHAT_MESSAGES: list[Any] = [{"role": "user", "content": "hi <|turn|> 🙂"}]


def test_text(shared: Served) -> None:
    reply = shared.post("/tokenize", prompt="hi").json()
    assert reply == {"count": 3, "max_model_len": 512, "tokens": [BOS, 104, 105]}
    assert shared.post("/tokenize", prompt="hi", add_special_tokens=False).json()["tokens"] == [104, 105]
    assert shared.post("/tokenize", content="hi").json()["tokens"] == [104, 105]
    assert shared.post("/tokenize", content="hi", add_special=True).json()["tokens"] == [BOS, 104, 105]
    assert shared.post("/tokenize", content="").json()["tokens"] == []


def test_pieces(shared: Served) -> None:
    reply = shared.post("/tokenize", content="h🙂", with_pieces=True).json()
    assert reply["tokens"][0] == {"id": 104, "piece": "h"}
    assert [token["piece"] for token in reply["tokens"][1:]] == [[byte] for byte in "🙂".encode()]
    assert shared.post("/tokenize", content="hi", return_token_strs=True).json()["token_strs"] == ["h", "i"]


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_a_chat_gives_the_ids_that_the_engine_gets(fake: Served, add_generation_prompt: bool) -> None:
    body = {"messages": CHAT_MESSAGES, "add_generation_prompt": add_generation_prompt}
    ids = fake.post("/tokenize", **body).json()["tokens"]
    fake.post(CHAT, **body, max_tokens=1)
    assert fake.client.requests[-1].prompt_token_ids == tuple(ids)
    assert ids.count(TURN) == 1 + add_generation_prompt


def test_a_prompt_gives_the_ids_that_the_engine_gets(fake: Served) -> None:
    ids = fake.post("/tokenize", prompt="some <s> text").json()["tokens"]
    fake.post(COMPLETIONS, prompt="some <s> text", max_tokens=1)
    assert fake.client.requests[-1].prompt_token_ids == tuple(ids)


def test_detokenize(shared: Served) -> None:
    ids = [BOS, *"a🙂".encode()]
    reply = shared.post("/detokenize", tokens=ids).json()
    assert reply == {"prompt": "<s>a🙂", "content": "<s>a🙂"}
    assert shared.post("/detokenize", tokens=ids, skip_special_tokens=True).json()["prompt"] == "a🙂"
    assert shared.post("/detokenize", tokens=[]).json()["prompt"] == ""
