"""Text to token ids and back, chat templates, and incremental text. Level 1: no engine, no HTTP."""

from __future__ import annotations

from plait.tokenizer.chat import ChatTemplate
from plait.tokenizer.roles import merge_roles
from plait.tokenizer.stream import TextStream
from plait.tokenizer.tokenizer import Span, Tokenizer

__all__ = ["ChatTemplate", "Span", "TextStream", "Tokenizer", "merge_roles"]
