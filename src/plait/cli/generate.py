"""plait generate"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from plait.frontend import Frontend, TextDelta
    from plait.types import GenerateRequest, SamplingParams


def generate(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] PROMPT", help="Prompt, after the model if not the default; - reads stdin."
        ),
    ],
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to produce.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 always takes the most likely token.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Sample from the tokens that make up this probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from so many best tokens; 0: from all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Least probability, relative to the best token's.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: repeat less.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Above 0: fewer tokens that occurred.")] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Above 0: fewer tokens that occurred often.")
    ] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given often.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end token.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt as a user's turn of a chat.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file with settings.")] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Continue a prompt and stream the text to stdout."""
    from plait.cli.session import model_name, open_session, public_name, resolve_settings
    from plait.cli.streams import read_input
    from plait.types import SamplingParams

    if len(words) > 2:
        raise typer.BadParameter("expected [MODEL] PROMPT; put the prompt in quotes", param_hint="PROMPT")
    model = words[0] if len(words) == 2 else None
    prompt = read_input() if words[-1] == "-" else words[-1]
    resolved = resolve_settings(config, settings, model)
    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=resolved.config.engine.seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    with open_session(resolved, needs_chat=chat) as frontend:
        request = _build(frontend, prompt, sampling, as_chat=chat)
        begin = time.monotonic()
        deltas = frontend.generate_sync(request)
        if as_json:
            print(json.dumps(summarize(public_name(model_name(resolved)), deltas, begin), ensure_ascii=False))
        else:
            _print_stream(deltas)


def _build(frontend: Frontend, prompt: str, sampling: SamplingParams, *, as_chat: bool) -> GenerateRequest:
    if as_chat:
        return frontend.build_chat([{"role": "user", "content": prompt}], sampling)
    return frontend.build_completion(prompt, sampling)


def _print_stream(deltas: Iterable[TextDelta]) -> None:
    for delta in deltas:
        check(delta)
        sys.stdout.write(delta.text)
        sys.stdout.flush()
    sys.stdout.write("\n")


def check(delta: TextDelta) -> None:
    """Raises PlaitError when the engine gave the request up."""
    from plait.errors import PlaitError

    if delta.error is not None:
        raise PlaitError(delta.error)


def summarize(model: str, deltas: Iterable[TextDelta], begin_s: float) -> dict[str, Any]:
    """The whole answer as plain data. ``begin_s`` is ``time.monotonic()`` when the request was made."""
    from msgspec.structs import asdict

    text = ""
    token_ids: list[int] = []
    first_s: float | None = None
    last: TextDelta | None = None
    for delta in deltas:
        check(delta)
        if delta.token_ids and first_s is None:
            first_s = time.monotonic() - begin_s
        text += delta.text
        token_ids += delta.token_ids
        last = delta
    total_s = time.monotonic() - begin_s
    return {
        "model": model,
        "text": text,
        "token_ids": token_ids,
        "finish_reason": None if last is None else last.finish_reason,
        "stop_reason": None if last is None else last.stop_reason,
        "usage": {} if last is None else asdict(last.usage),
        "first_token_s": None if first_s is None else round(first_s, 4),
        "total_s": round(total_s, 4),
    }
