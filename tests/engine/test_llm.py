"""LLM, AsyncLLM and the commands over a whole engine with the real model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait import LLM, AsyncLLM, SamplingParams
from plait.cli import main
from plait.errors import ConfigError, InvalidRequestError

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), max_model_len=1024, max_batch_size=16, max_queued_requests=24) as llm:
        yield llm


def test_generate_forms(llm: LLM) -> None:
    (output,) = llm.generate(PROMPT, GREEDY)
    assert output.prompt == PROMPT
    assert output.finished
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "length"
    assert len(output.outputs[0].token_ids) == 12
    ids = list(output.prompt_token_ids)
    assert llm.get_tokenizer().encode(PROMPT) == ids
    for prompts in ([PROMPT], {"prompt": PROMPT}, {"prompt_token_ids": ids}, ids, [ids]):
        (again,) = llm.generate(prompts, GREEDY)
        assert again.outputs[0].token_ids == output.outputs[0].token_ids
        assert again.prompt_token_ids == tuple(ids)


def test_several_prompts_keep_their_order(llm: LLM) -> None:
    prompts = [f"{number} and {number + 1} are" for number in range(40)]  # more than the queue takes
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == prompts
    assert len({output.request_id for output in outputs}) == len(prompts)
    alone = llm.generate(prompts[7], GREEDY)[0]
    assert outputs[7].outputs[0].token_ids == alone.outputs[0].token_ids


def test_each_prompt_may_have_its_own_sampling(llm: LLM) -> None:
    sampling = [SamplingParams(temperature=0, max_tokens=count) for count in (1, 3)]
    outputs = llm.generate([PROMPT, PROMPT], sampling)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 3]


def test_choices_and_logprobs(llm: LLM) -> None:
    sampling = SamplingParams(n=3, seed=5, max_tokens=6, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate(PROMPT, sampling)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    for choice in output.outputs:
        assert choice.logprobs is not None
        assert len(choice.logprobs) == len(choice.token_ids)
        for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True):
            assert token_id in entry
            assert entry[token_id].logprob <= 0
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert output.prompt_logprobs[0] is None
    (again,) = llm.generate(PROMPT, sampling)
    assert again.outputs == output.outputs


def test_chat(llm: LLM) -> None:
    chat = [{"role": "user", "content": "Reply with the word yes."}]
    outputs = llm.chat([chat, chat], GREEDY)
    assert len(outputs) == 2
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids
    assert llm.chat(chat, GREEDY)[0].outputs[0].text == outputs[0].outputs[0].text


def test_bad_requests_name_the_field(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(PROMPT, SamplingParams(temperature=-1))
    assert caught.value.param == "temperature"
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(["fine", ""], GREEDY)
    assert caught.value.param == "prompts[1]"
    assert str(caught.value).startswith("prompts[1]: ")
    with pytest.raises(ConfigError, match="unknown engine setting max_model_length"):
        LLM("nowhere.gguf", max_model_length=3)


def test_threads_share_the_engine(llm: LLM) -> None:
    """32 threads at once get what each would get alone."""
    prompts = [f"Item {number}:" for number in range(32)]
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    found: dict[int, tuple[int, ...]] = {}
    barrier = threading.Barrier(32)

    def work(number: int) -> None:
        barrier.wait(30)
        found[number] = llm.generate(prompts[number], GREEDY)[0].outputs[0].token_ids

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [found[number] for number in range(32)] == expected


def test_async_streams_and_aborts(llm: LLM) -> None:
    async_llm = AsyncLLM.from_frontend(llm.frontend)
    async_llm._finalizer.detach()  # the engine belongs to the fixture

    async def collect() -> tuple[list[str], str | None]:
        texts = []
        async for output in async_llm.generate(PROMPT, GREEDY):
            texts.append(output.outputs[0].text)
        assert output.finished
        return texts, output.outputs[0].finish_reason

    async def abort() -> str | None:
        sampling = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
        reason = None
        async for output in async_llm.generate(PROMPT, sampling, request_id="mine"):
            reason = output.outputs[0].finish_reason
            await async_llm.abort("mine")
            await async_llm.abort("unknown")
        return reason

    async def twice() -> None:
        stream = async_llm.generate(PROMPT, SamplingParams(max_tokens=500), request_id="same")
        await anext(stream)
        with pytest.raises(InvalidRequestError, match="same"):
            await anext(async_llm.generate(PROMPT, GREEDY, request_id="same"))
        await stream.aclose()

    async def run_all() -> None:
        (texts, reason), aborted = await asyncio.gather(collect(), abort())
        assert texts[-1].startswith(texts[0])
        assert texts[-1] == llm.generate(PROMPT, GREEDY)[0].outputs[0].text
        assert (reason, aborted) == ("length", "abort")
        await twice()

    asyncio.run(run_all())


def run_command(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def test_generate_command(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--temperature", "0", "--max-tokens", "8", "--max-model-len", "256"]
    assert run_command("generate", str(smollm2_path), PROMPT, *flags) == 0
    text = capsys.readouterr().out
    assert "Paris" in text
    assert run_command("generate", str(smollm2_path), PROMPT, *flags, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["text"] + "\n" == text
    assert len(result["token_ids"]) == result["usage"]["completion_tokens"] == 8
    assert result["finish_reason"] == "length"


def test_generate_command_refuses(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("generate", str(smollm2_path), PROMPT, "--top-p", "7", "--max-model-len", "256") == 2
    assert "top_p" in capsys.readouterr().err


def test_inspect_command(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("inspect", str(smollm2_path)) == 0
    text = capsys.readouterr().out
    for part in ("134.5 M parameters", "general.architecture", "blk.0.attn_q.weight", "Q4_1"):
        assert part in text
    assert run_command("inspect", str(smollm2_path), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["tensors"]) == 272
    assert run_command("inspect", str(smollm2_path), "--graph", "--json") == 0
    graph = json.loads(capsys.readouterr().out)
    assert len(graph["after"]) < len(graph["before"])
