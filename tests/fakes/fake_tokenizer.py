"""A byte-level tokenizer and a plain chat template with the interface of plait.tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait.errors import InvalidRequestError
from plait.tokenizer import Span

BOS = 256
EOS = 257
TURN = 258
MULTI_BYTE = {259: "héllo".encode(), 260: "🙂".encode()[:2], 261: "🙂".encode()[2:]}
SPECIAL = {BOS: b"<s>", EOS: b"</s>", TURN: b"<|turn|>"}


class FakeTokenizer:
    """Ids 0 to 255 are bytes; then specials; then a few tokens that hold more or less than a code point."""

    vocab_size = 262
    bos_token_id = BOS
    eos_token_ids = (EOS,)
    adds_bos = True
    strips_first_space = False

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return self.encode_spans([Span(text, parse_special)], add_special=add_special)

    def encode_spans(self, spans: Sequence[Span], *, add_special: bool = True) -> list[int]:
        ids = [BOS] if add_special else []
        for span in spans:
            pieces = span.text.split("<|turn|>") if span.is_template else [span.text]
            for idx, piece in enumerate(pieces):
                if idx:
                    ids.append(TURN)
                ids.extend(piece.encode())
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = (i for i in ids if not (skip_special_tokens and self.is_special(i)))
        return b"".join(self.token_bytes(i) for i in kept).decode("utf-8", "replace")

    def min_num_tokens(self, text: str) -> int:
        return len(text)

    def visible_bytes(self, token_id: int, skip_special_tokens: bool) -> bytes:
        return b"" if skip_special_tokens and self.is_special(token_id) else self.token_bytes(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return SPECIAL.get(token_id) or MULTI_BYTE[token_id]

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in SPECIAL


class FakeTemplate:
    """``<|turn|>role:content`` for every message; two turns of one role in a row break its rule."""

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> list[Span]:
        spans = []
        last_role = None
        for idx, message in enumerate(messages):
            if message["role"] == last_role == "user":
                raise InvalidRequestError("Roles must alternate.", param=f"messages[{idx}].role")
            last_role = message["role"]
            spans += [Span(f"<|turn|>{last_role}:", True), Span(message["content"] or "", False)]
        if add_generation_prompt:
            spans.append(Span("<|turn|>assistant:", True))
        return spans
