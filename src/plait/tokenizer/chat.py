"""ChatTemplate: messages to a prompt, by the Jinja template inside the model file. Thread-safe.

The template is hostile until proven otherwise: it runs in a sandbox with bounds on time and memory. The
result is spans that say which text the template wrote; what the messages brought in can never become a
control token.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from plait.errors import InvalidRequestError, one_line
from plait.tokenizer.budget import MAX_RENDER_S, Budget, BudgetError
from plait.tokenizer.provenance import TemplateText, joined, pieces_of, trusted
from plait.tokenizer.sandbox import TemplateEnvironment
from plait.tokenizer.tokenizer import Span

logger = logging.getLogger("plait.tokenizer")

MAX_SOURCE_CHARS = 256 * 1024
KNOWN_ROLES = frozenset(["system", "user", "assistant", "tool", "developer", "function", "model", "ipython"])
"""Role names that templates may build control tokens from."""
_MAX_REASON_CHARS = 500


class _RefusalError(TemplateError):
    """``raise_exception`` of a template: the messages break a rule of the model."""


class ChatTemplate:
    """A compiled template. One that does not compile refuses every chat; the model stays usable without."""

    def __init__(
        self, source: str, *, bos_token: str, eos_token: str, max_render_s: float = MAX_RENDER_S
    ) -> None:
        self.source = source
        self._max_render_s = max_render_s
        self.compile_error = ""
        """Why the template can not be used; empty when it can."""
        self._tokens = {"bos_token": trusted(bos_token), "eos_token": trusted(eos_token)}
        self._environment = TemplateEnvironment()
        self._environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self._template: Template | None = None
        try:
            self._template = _compile(self._environment, source)
        except Exception as error:
            self.compile_error = f"the chat template in the model file can not be used: {_reason(error)}"
            logger.warning("%s", self.compile_error)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> ChatTemplate | None:
        """The template of a GGUF file; None when it has none."""
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str) or not source.strip():
            return None
        tokens = metadata.get("tokenizer.ggml.tokens")

        def text(name: str) -> str:
            token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
            if isinstance(tokens, list) and isinstance(token_id, int) and 0 <= token_id < len(tokens):
                return str(tokens[token_id])
            return ""

        return cls(source, bos_token=text("bos"), eos_token=text("eos"))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> list[Span]:
        """The prompt of a chat.

        Args:
            messages: dicts with ``role`` and ``content`` (text, a list of text parts, or None; nothing
                is put between parts).
            extra: more variables for the template, e.g. ``{"enable_thinking": False}``.

        Raises:
            InvalidRequestError: the template refuses the messages or fails on them (``param`` is
            "messages"), or a
                content part is no text (``param`` names it).
        """
        if self._template is None:
            raise InvalidRequestError(self.compile_error, param="messages", code="chat_template_error")
        variables: dict[str, Any] = dict(extra or {})
        variables.update(self._tokens)
        variables.update(
            messages=[_prepared(message, f"messages[{i}]") for i, message in enumerate(messages)],
            tools=tools,
            documents=variables.get("documents"),
            add_generation_prompt=add_generation_prompt,
        )
        try:
            return self._render(self._template, variables)
        except _RefusalError as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {_reason(error)}",
                param="messages",
                code="chat_template_refused",
            ) from error
        except BudgetError as error:
            message = f"the chat template was stopped: {_reason(error)}"
            raise InvalidRequestError(message, param="messages", code="chat_template_error") from error
        except SecurityError as error:
            message = f"the chat template does what templates may not do: {_reason(error)}"
            raise InvalidRequestError(message, param="messages", code="chat_template_error") from error
        except Exception as error:
            message = f"the chat template fails on these messages: {_reason(error)}"
            raise InvalidRequestError(message, param="messages", code="chat_template_error") from error

    def _render(self, template: Template, variables: dict[str, Any]) -> list[Span]:
        budget = Budget(_size(variables), self._max_render_s)
        self._environment.budget = budget
        written = []
        size = 0
        for text in template.root_render_func(template.new_context(variables)):
            budget.tick()
            size += len(text)
            budget.check_size(size)
            written.append(text)
        return [Span(text, is_trusted) for text, is_trusted in pieces_of(joined(written))]


def _compile(environment: TemplateEnvironment, source: str) -> Template:
    if len(source) > MAX_SOURCE_CHARS:
        raise BudgetError(f"it is longer than {MAX_SOURCE_CHARS} characters")
    tree = environment.instrument(environment.parse(source))
    return Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _prepared(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A copy whose content is text and whose known role is trusted."""
    made = dict(message)
    content = made.get("content")
    if isinstance(content, (list, tuple)):
        made["content"] = _joined_parts(content, f"{where}.content")
    elif content is None and not made.get("tool_calls"):
        made["content"] = ""
    role = made.get("role")
    if isinstance(role, str) and role in KNOWN_ROLES:
        made["role"] = trusted(role)
    return made


def _joined_parts(parts: Sequence[Any], where: str) -> str:
    texts = []
    for i, part in enumerate(parts):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else part
        if not isinstance(text, str):
            raise InvalidRequestError(
                'a content part must be {"type": "text", "text": "..."}; this model takes text only',
                param=f"{where}[{i}]",
            )
        texts.append(text)
    return "".join(texts)


def _size(value: Any, depth: int = 0) -> int:
    """Characters that the request brings, for the budget."""
    if isinstance(value, str):
        return len(value)
    if depth > 16:
        return 0
    if isinstance(value, Mapping):
        return sum(_size(key, depth + 1) + _size(item, depth + 1) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return sum(_size(item, depth + 1) for item in value)
    return 0


def _reason(error: BaseException) -> str:
    """One line for the client; it may hold what the model file says."""
    if isinstance(error, TemplateSyntaxError):
        text = f"line {error.lineno}: {error.message}"
    elif isinstance(error, RecursionError):
        text = "it nests too deeply"
    elif isinstance(error, (TemplateError, BudgetError)):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return one_line(text[:_MAX_REASON_CHARS])[:_MAX_REASON_CHARS]


def _raise_exception(message: object = "") -> NoReturn:
    raise _RefusalError(str(message)[:_MAX_REASON_CHARS])


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 256:
        raise BudgetError("its date format is too long")
    text = datetime.datetime.now().astimezone().strftime(str.__str__(pattern))
    return trusted(text) if isinstance(pattern, TemplateText) and pattern.is_trusted else text
