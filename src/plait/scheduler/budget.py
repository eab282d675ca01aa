"""How many prompt tokens a step takes, and how prompts share them."""

from __future__ import annotations

from collections.abc import Sequence as Seq

# Slices below this use the kernels badly: fewer prompts get one instead.
MIN_SLICE_TOKENS = 64
# Steps with fewer prompt tokens say little about the cost of a prompt token.
_MIN_MEASURED_TOKENS = 16
_SMOOTHING = 0.3


class PrefillPacer:
    """Learns the cost of a prompt token, so that decodes are not held up by more than the target time."""

    def __init__(self, max_batch_tokens: int, target_step_s: float) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._target_step_s = target_step_s
        self._token_s = 0.0

    @property
    def token_s(self) -> float:
        """Seconds for one prompt token, 0 before the first measurement."""
        return self._token_s

    def observe(self, num_prefill_tokens: int, num_decodes: int, step_s: float) -> None:
        """Learn from a step that ended."""
        if num_prefill_tokens < _MIN_MEASURED_TOKENS or step_s <= 0.0:
            return
        token_s = step_s / (num_prefill_tokens + num_decodes)
        self._token_s = (
            token_s if not self._token_s else self._token_s + _SMOOTHING * (token_s - self._token_s)
        )

    def budget(self, num_decodes: int) -> int:
        """Prompt tokens for a step that has ``num_decodes`` decodes; at least 1 when there is room at all."""
        room = self._max_batch_tokens - num_decodes
        if not num_decodes or not self._token_s:
            return room
        timed = int(self._target_step_s / self._token_s) - num_decodes
        return min(room, max(timed, MIN_SLICE_TOKENS))


def share_prefill(remaining: Seq[int], budget: int, max_slice: int) -> list[int]:
    """Divides ``budget`` tokens between prompts; ``remaining`` is what each still needs, oldest first.

    The oldest prompt always gets a fair part, the shortest ones get the rest: a short prompt is not held up
    by a long one, and a long one is not starved by a stream of short ones. What a prompt does not need goes
    to the others.
    """
    shares = [0] * len(remaining)
    if not remaining or budget <= 0:
        return shares
    # The sort is stable: equally short prompts go by age.
    order = sorted(range(1, len(remaining)), key=remaining.__getitem__)
    # Two at least: a budget that a time target cuts down must not let one prompt block all others.
    # But never more than there are tokens: the oldest must get one.
    num_sharers = min(len(remaining), max(2, budget // MIN_SLICE_TOKENS), budget)
    sharers = sorted([0, *order[: num_sharers - 1]], key=remaining.__getitem__)
    left = budget
    for i, idx in enumerate(sharers):
        shares[idx] = min(remaining[idx], max_slice, max(left // (len(sharers) - i), 1), left)
        left -= shares[idx]
    # What is left because sharers were short or at their cap goes to the next ones.
    for idx in [*sharers, *order[num_sharers - 1 :]]:
        if left <= 0:
            break
        more = min(remaining[idx] - shares[idx], max_slice - shares[idx], left)
        shares[idx] += more
        left -= more
    return shares
