"""Turns the token outputs of one request into text deltas.

Pure state, no threads: whoever consumes the generation calls it, one caller at a time.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from plait.frontend.delta import TextDelta, TextLogprob, TopLogprob, Usage
from plait.tokenizer import TextStream, Tokenizer
from plait.types import FinishReason, GenerateRequest, TokenLogprob, TokenOutput


class OffsetCounter:
    """Counts the code points of a growing byte text without keeping the text."""

    def __init__(self) -> None:
        self.offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, raw: bytes) -> None:
        self.offset += len(self._decoder.decode(raw))


class LogprobText:
    """Gives token logprobs their text, bytes and offsets.

    Args:
        is_start: nothing visible stands before; some vocabularies drop a leading space there.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, is_start: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._strips_space = is_start and tokenizer.strips_first_space
        self._counter = OffsetCounter()

    def convert(self, entry: TokenLogprob) -> TextLogprob:
        tokenizer = self._tokenizer
        top = tuple(
            TopLogprob(token_id, tokenizer.token_text(token_id), tokenizer.token_bytes(token_id), logprob)
            for token_id, logprob in entry.top
        )
        return self._place(entry.token_id, entry.logprob, top)

    def convert_prompt(
        self, token_ids: Iterable[int], entries: Iterable[TokenLogprob | None]
    ) -> tuple[TextLogprob, ...]:
        return tuple(
            self._place(token_id, None, ()) if entry is None else self.convert(entry)
            for token_id, entry in zip(token_ids, entries, strict=True)
        )

    def _place(self, token_id: int, logprob: float | None, top: tuple[TopLogprob, ...]) -> TextLogprob:
        offset = self._counter.offset
        visible = self._tokenizer.visible_bytes(token_id, self._skip_special_tokens)
        if visible and self._strips_space:
            self._strips_space = False
            visible = visible.removeprefix(b" ")
        self._counter.add(visible)
        raw = self._tokenizer.token_bytes(token_id)
        return TextLogprob(token_id, self._tokenizer.token_text(token_id), raw, logprob, offset, top)


class ChoiceText:
    """The text of one choice."""

    def __init__(
        self, tokenizer: Tokenizer, request: GenerateRequest, request_idx: int, index: int, *, discard: bool
    ) -> None:
        sampling = request.sampling
        self._request_idx = request_idx
        self._index = index
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._include_stop = sampling.include_stop_str_in_output
        self._has_stop_strings = bool(sampling.stop)
        self._discard = discard
        self._stream = TextStream(
            tokenizer,
            stop=sampling.stop,
            include_stop=sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
            skip_special_tokens=sampling.skip_special_tokens,
            prompt_ids=request.prompt_token_ids,
        )
        skips = sampling.skip_special_tokens
        self._logprob_text = LogprobText(
            tokenizer,
            skip_special_tokens=skips,
            is_start=not any(tokenizer.visible_bytes(i, skips) for i in request.prompt_token_ids),
        )
        self._eos_token_ids = frozenset(tokenizer.eos_token_ids)
        self._num_tokens = 0
        self._num_cached_tokens = 0
        self.is_finished = False
        self.has_stopped_early = False
        """A stop string ended it, which the engine does not know of."""
        self._push(request.produced_token_ids)

    def _push(self, token_ids: tuple[int, ...]) -> tuple[str, int]:
        """The text that became final, and how many of the ids were used before a stop string ended it."""
        if not self._has_stop_strings:
            return self._stream.push(token_ids), len(token_ids)
        text = ""
        for num_used, token_id in enumerate(token_ids, start=1):
            text += self._stream.push((token_id,))
            if self._stream.stopped_by is not None:
                return text, num_used
        return text, len(token_ids)

    def feed(self, output: TokenOutput, prompt_logprobs: tuple[TextLogprob, ...] | None) -> TextDelta:
        self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        if self._discard:
            return self._delta("", (), (), output.finish_reason, None, prompt_logprobs, output.error)
        token_ids = output.token_ids
        hides_stop_token = output.stop_token_id is not None and not self._include_stop
        text, num_used = self._push(token_ids[:-1] if hides_stop_token else token_ids)
        finish_reason = output.finish_reason
        stop_reason: str | int | None = None
        if self._stream.stopped_by is not None:
            token_ids = token_ids[:num_used]
            self.has_stopped_early = finish_reason is None
            finish_reason, stop_reason = FinishReason.STOP, self._stream.stopped_by
        elif finish_reason is not None:
            text += self._stream.finish()
            if self._stream.stopped_by is not None:
                finish_reason, stop_reason = FinishReason.STOP, self._stream.stopped_by
            elif output.stop_token_id is not None and output.stop_token_id not in self._eos_token_ids:
                stop_reason = output.stop_token_id
        logprobs = tuple(self._logprob_text.convert(entry) for entry in output.logprobs[: len(token_ids)])
        return self._delta(
            text, token_ids, logprobs, finish_reason, stop_reason, prompt_logprobs, output.error
        )

    def _delta(
        self,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[TextLogprob, ...],
        finish_reason: FinishReason | None,
        stop_reason: str | int | None,
        prompt_logprobs: tuple[TextLogprob, ...] | None,
        error: str | None = None,
    ) -> TextDelta:
        self._num_tokens += len(token_ids)
        self.is_finished = finish_reason is not None
        return TextDelta(
            request_idx=self._request_idx,
            index=self._index,
            text=text,
            token_ids=token_ids,
            usage=Usage(self._num_prompt_tokens, self._num_tokens, self._num_cached_tokens),
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            prompt_logprobs=prompt_logprobs,
            error=error,
        )


class RequestText:
    """The text of all choices of one request."""

    def __init__(
        self, tokenizer: Tokenizer, request: GenerateRequest, request_idx: int, *, discard: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._choices = [
            ChoiceText(tokenizer, request, request_idx, index, discard=discard)
            for index in range(request.sampling.n)
        ]
        self.num_running = request.sampling.n
        self._prompt_logprobs: tuple[TextLogprob, ...] | None = None

    @property
    def has_stopped_early(self) -> bool:
        """All choices are finished, some of them before the engine knows: it must be told to abort."""
        return self.num_running == 0 and any(choice.has_stopped_early for choice in self._choices)

    def read_prompt(self, output: TokenOutput) -> None:
        """Convert the prompt's logprobs of ``output`` ahead of ``feed``; for a long prompt this takes a while."""
        converter = LogprobText(
            self._tokenizer, skip_special_tokens=self._request.sampling.skip_special_tokens, is_start=True
        )
        self._prompt_logprobs = converter.convert_prompt(
            self._request.prompt_token_ids, output.prompt_logprobs
        )

    def feed(self, output: TokenOutput) -> TextDelta | None:
        """The delta of one output; None when its choice is already finished."""
        if output.prompt_logprobs and self._prompt_logprobs is None:
            self.read_prompt(output)
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        choice = self._choices[output.index]
        if choice.is_finished:
            return None
        delta = choice.feed(output, prompt_logprobs)
        if choice.is_finished:
            self.num_running -= 1
        return delta
