"""LLM and AsyncLLM with arguments of wrong types: plait's own errors, which say what is expected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait import LLM, AsyncLLM, SamplingParams
from plait.errors import ConfigError, InvalidRequestError
from plait.frontend import Frontend
from tests.fakes.fake_client import FakeClient
from tests.fakes.fake_tokenizer import FakeTemplate, FakeTokenizer


class Odd:
    """Neither a list nor a text."""

    def __bool__(self) -> bool:
        raise AssertionError("nobody may ask for this")


def make_frontend() -> Frontend:
    return Frontend(FakeClient(), FakeTokenizer(), FakeTemplate())  # type: ignore[arg-type]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_frontend(make_frontend()) as llm:
        yield llm


NO_PROMPTS = [
    b"ab",
    bytearray(b"ab"),
    memoryview(b"ab"),
    None,
    5,
    1.5,
    True,
    Odd(),
    {1, 2},
    iter(["a"]),
    {},
    {"prompt": 3},
    {"prompt": b"a"},
    {"prompt_token_ids": 5},
    {"prompt_token_ids": b"ab"},
    {"prompt_token_ids": "ab"},
    {"prompt_token_ids": [1, "a"]},
    [b"ab"],
    [None],
    ["a", 5],
    ["a", b"b"],
    ["a", None],
    [1, "a"],
    [1, None],
    [1, 2.0],
    [True, 1],
    [1, True],
    [[1, 2], ["a"]],
    [["a", "b"]],
    ["a", Odd()],
    "\ud800abc",
    ["a", {"prompt": "\udfff"}],
]


@pytest.mark.parametrize("prompts", NO_PROMPTS, ids=lambda value: repr(value)[:40])
def test_prompts(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"must be|token ids are integers") as caught:
        llm.generate(prompts)
    assert caught.value.param is not None
    assert caught.value.param.startswith("prompts")


def test_bytes_are_told_to_be_decoded(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="not bytes \\(decode it to a text first\\)"):
        llm.generate(b"ab")  # type: ignore[arg-type]


def test_the_wrong_one_of_several_is_named(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompts\[1\] must be a text, .* not int$"):
        llm.generate(["a", 5])  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match=r"^prompts holds str at index 1; token ids are integers$"):
        llm.generate([1, "a"])  # type: ignore[list-item]


NO_CHATS = [
    "x",
    b"x",
    None,
    5,
    {"role": "user", "content": "x"},
    ["x"],
    [None],
    [[]],
    [["x"]],
    [{}],
    [{"content": "x"}],
    [{"role": 5, "content": "x"}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": "a\ud800"}],
    [{"role": "user", "content": [{"type": "text", "text": "\udfff"}]}],
    [{"role": "user", "content": b"x"}],
    [{"role": "user", "content": "x"}, "y"],
    [[{"role": "user", "content": "x"}], {"role": "user", "content": "x"}],
    [{"role": "user", "content": "x"}, [{"role": "user", "content": "x"}]],
    Odd(),
]


@pytest.mark.parametrize("messages", NO_CHATS, ids=lambda value: repr(value)[:40])
def test_chats(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.chat(messages)
    assert caught.value.param is not None
    assert caught.value.param.startswith("messages")


@pytest.mark.parametrize("tools", [5, "x", [5], {"type": "function"}])
def test_tools(llm: LLM, tools: Any) -> None:
    with pytest.raises(InvalidRequestError, match="tools must be a list of dicts"):
        llm.chat([{"role": "user", "content": "x"}], tools=tools)


@pytest.mark.parametrize(
    "sampling", [5, "x", {"temperature": 0}, [5], [None, 5], 0, "", False, Odd()], ids=repr
)
def test_sampling_params(llm: LLM, sampling: Any) -> None:
    chat = [{"role": "user", "content": "x"}]
    for call in (lambda: llm.generate("x", sampling), lambda: llm.chat(chat, sampling)):
        with pytest.raises(InvalidRequestError, match="sampling_params") as caught:
            call()
        assert caught.value.param is not None
        assert caught.value.param.startswith("sampling_params")


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": "x"},
        {"stop": 5},
        {"stop_token_ids": 5},
        {"logit_bias": 5},
        {"max_tokens": "x"},
        {"n": None},
        {"seed": "x"},
    ],
    ids=repr,
)
def test_fields_of_sampling_params(llm: LLM, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        llm.generate("x", SamplingParams(**wrong))


def test_async_forms() -> None:
    async def first(stream: Any) -> Any:
        return await anext(aiter(stream))

    async def main() -> None:
        async with AsyncLLM.from_frontend(make_frontend()) as llm:
            chat = [{"role": "user", "content": "x"}]
            wrong: list[Any] = [
                llm.generate(b"ab"),  # type: ignore[arg-type]
                llm.generate(None),  # type: ignore[arg-type]
                llm.generate(["a"]),  # type: ignore[list-item]
                llm.generate("x", 5),  # type: ignore[arg-type]
                llm.generate("x", request_id=5),  # type: ignore[arg-type]
                llm.generate("x", request_id=[]),  # type: ignore[arg-type]
                llm.chat("x"),  # type: ignore[arg-type]
                llm.chat([]),
                llm.chat([chat]),  # type: ignore[list-item]
                llm.chat(chat, {}),  # type: ignore[arg-type]
                llm.chat(chat, tools=5),  # type: ignore[arg-type]
            ]
            for stream in wrong:
                with pytest.raises(InvalidRequestError):
                    await first(stream)
            assert (await first(llm.generate("x"))).request_id == "plait-0"

    asyncio.run(main())


def test_async_with_closes_the_engine() -> None:
    frontend = make_frontend()

    async def main() -> None:
        async with AsyncLLM.from_frontend(frontend) as llm:
            assert llm.frontend is frontend
            assert frontend.client.health().is_alive
        assert not frontend.client.health().is_alive
        llm.shutdown()

    asyncio.run(main())


@pytest.mark.parametrize("cls", [LLM, AsyncLLM])
@pytest.mark.parametrize("model", [None, 5, b"x", "", ["x"], True], ids=repr)
def test_models(cls: Any, model: Any) -> None:
    with pytest.raises(ConfigError, match=r"^model must be the path of a GGUF file or a model's name, not "):
        cls(model)


def test_a_model_may_be_a_path(tmp_path: Path) -> None:
    from plait.errors import ModelFileError

    with pytest.raises(ModelFileError, match=r"there is no file .*/none\.gguf"):
        LLM(tmp_path / "none.gguf")


@pytest.mark.parametrize("cls", [LLM, AsyncLLM])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", -1),
        ("block_tokens", 17),
        ("kv_cache_bytes", "many"),
        ("seed", -1),
        ("max_batch_size", "x"),
    ],
)
def test_settings_are_named_as_python_s_arguments(cls: Any, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: ") as caught:
        cls("/nowhere.gguf", **{name: value})
    assert "--" not in str(caught.value)
