"""merge_roles: makes a chat fit templates that want one system message and strictly alternating turns.

Never applied silently: a caller asks for it, because it changes what the model reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MERGED_ROLES = ("system", "user", "assistant")
_SEPARATOR = "\n\n"


def merge_roles(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same chat with system messages joined at the front and neighbours of one role joined to one.

    Only messages whose content is text are joined, by an empty line and in their order; tool calls and tool
    results stay as they are.
    """
    system = [message for message in messages if _role(message) == "system" and _is_text(message)]
    others = [message for message in messages if not (_role(message) == "system" and _is_text(message))]
    merged: list[dict[str, Any]] = []
    for message in (*system, *others):
        last = merged[-1] if merged else None
        if (
            last is not None
            and _role(last) == _role(message)
            and _role(message) in _MERGED_ROLES
            and _is_text(last)
            and _is_text(message)
        ):
            last["content"] = _SEPARATOR.join((last["content"], message["content"]))
        else:
            merged.append(dict(message))
    return merged


def _role(message: Mapping[str, Any]) -> object:
    role = message.get("role")
    return "system" if role == "developer" else role


def _is_text(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("content"), str) and not message.get("tool_calls")
