"""plait chat"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from plait.frontend import Frontend
    from plait.types import SamplingParams

HELP = """\
/reset   forget the conversation
/help    this list
/exit    leave (also Ctrl-D)
Ctrl-C   stop the answer that is being written"""


def chat(
    model: Annotated[
        str | None, typer.Argument(help="GGUF file or catalogue name. Default: the small default model.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="Instruction that stands before the conversation.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of one answer. Default: what is left of the context."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 always takes the most likely token.")] = 0.7,
    top_p: Annotated[
        float, typer.Option(help="Sample from the tokens that make up this probability.")
    ] = 0.95,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file with settings.")] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Talk with a model in the terminal."""
    from plait.cli.session import model_name, open_session, public_name, resolve_settings
    from plait.types import SamplingParams

    resolved = resolve_settings(config, settings, model)
    sampling = SamplingParams(
        temperature=temperature, top_p=top_p, seed=resolved.config.engine.seed, max_tokens=max_tokens
    )
    with open_session(resolved, needs_chat=True) as frontend:
        conversation = Conversation(frontend, sampling, system)
        conversation.check()
        conversation.run(public_name(model_name(resolved)))


class Conversation:
    """Reads turns from stdin and streams answers to stdout; runs on the main thread, which gets Ctrl-C."""

    def __init__(self, frontend: Frontend, sampling: SamplingParams, system: str | None) -> None:
        self._frontend = frontend
        self._sampling = sampling
        self._system = system
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def check(self) -> None:
        """Raises InvalidRequestError for parameters that every turn would fail with."""
        self._frontend.build_request([0], self._sampling, param="prompt")

    def run(self, name: str) -> None:
        from plait.cli.streams import read_line

        is_terminal = sys.stdin.isatty()
        if is_terminal:
            _enable_line_editing()
            print(f"{name}; /help lists the commands, Ctrl-D leaves")
        while True:
            try:
                line = read_line("> " if is_terminal else "").strip()
            except EOFError:
                break
            except KeyboardInterrupt:
                print("\n(Ctrl-D or /exit leaves)")
                continue
            if line == "/exit":
                break
            self.handle(line)
        if is_terminal:
            print()

    def handle(self, line: str) -> None:
        """One line of the user: a command or a turn."""
        if line == "/reset":
            self.reset()
            print("(the conversation starts anew)")
        elif line == "/help":
            print(HELP)
        elif line.startswith("/"):
            print(f"(unknown command {line.split()[0]}; /help lists them)")
        elif line:
            self._answer(line)

    def _answer(self, text: str) -> None:
        from plait.errors import InvalidRequestError

        turn = {"role": "user", "content": text}
        try:
            request = self._frontend.build_chat([*self.messages, turn], self._sampling)
        except InvalidRequestError as error:
            if error.code != "context_length_exceeded":
                raise
            print(f"({error.message} /reset starts anew)")
            return
        generation = self._frontend.submit_sync([request])
        parts: list[str] = []
        try:
            for delta in generation:
                if delta.error is not None:
                    print(f"\n({delta.error})", end="")
                parts.append(delta.text)
                print(delta.text, end="", flush=True)
        except KeyboardInterrupt:
            print(" (stopped)", end="")
        finally:
            generation.abort()
        print()
        self.messages += [turn, {"role": "assistant", "content": "".join(parts)}]


def _enable_line_editing() -> None:
    """input() edits lines and remembers them once readline is imported; not every Python has it."""
    import contextlib
    import importlib

    with contextlib.suppress(ImportError):
        importlib.import_module("readline")
