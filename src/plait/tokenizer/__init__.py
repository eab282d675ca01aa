"""LOCAL STAND-IN, never committed."""
from __future__ import annotations
import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

class Tokenizer(Protocol):
    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    adds_bos: bool
    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]: ...
    def encode_spans(self, spans: Sequence[Span], *, add_special: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def token_text(self, token_id: int) -> str: ...
    def is_special(self, token_id: int) -> bool: ...

@dataclass(frozen=True)
class Span:
    text: str
    is_template: bool

class ChatTemplate(Protocol):
    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, tools: list[dict[str, Any]] | None = None, extra: dict[str, Any] | None = None) -> list[Span]: ...

class TextStream:
    def __init__(self, tokenizer: Tokenizer, *, stop: Sequence[str] = (), include_stop: bool = False, skip_special_tokens: bool = True, prompt_ids: Sequence[int] = ()) -> None:
        self.t = tokenizer; self.stop = stop; self.inc = include_stop; self.skip = skip_special_tokens
        self.buf = ""; self.stopped_by: str | None = None
        self.d = codecs.getincrementaldecoder("utf-8")("replace")
    def _out(self, final: bool) -> str:
        if self.stopped_by is not None:
            return ""
        best = None
        for s in self.stop:
            i = self.buf.find(s)
            if i >= 0 and (best is None or i < best[0]):
                best = (i, s)
        if best:
            self.stopped_by = best[1]
            return self.buf[: best[0]] + (best[1] if self.inc else "")
        hold = 0
        if not final:
            for s in self.stop:
                for k in range(len(s) - 1, 0, -1):
                    if self.buf.endswith(s[:k]):
                        hold = max(hold, k)
                        break
        out, self.buf = self.buf[: len(self.buf) - hold], self.buf[len(self.buf) - hold :]
        return out
    def push(self, token_ids: Sequence[int]) -> str:
        r = ""
        for i in token_ids:
            if not (self.skip and self.t.is_special(i)):
                self.buf += self.d.decode(self.t.token_bytes(i))
            r += self._out(False)
        return r
    def finish(self) -> str:
        self.buf += self.d.decode(b"", True)
        return self._out(True)
