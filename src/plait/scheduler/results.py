"""What a step that ended means for its sequences."""

from __future__ import annotations

from plait.scheduler.blocks import KvBlocks
from plait.scheduler.endings import Endings
from plait.scheduler.limits import SchedulerLimits
from plait.scheduler.sequence import FINISHED, RUNNING, Sequence
from plait.scheduler.stats import SchedulerStats
from plait.scheduler.step import StepOutcome, StepPlan
from plait.types import FinishReason, TokenLogprob


class Results:
    def __init__(
        self, kv: KvBlocks, limits: SchedulerLimits, endings: Endings, stats: SchedulerStats
    ) -> None:
        self._kv = kv
        self._block_tokens = limits.block_tokens
        self._endings = endings
        self._stats = stats

    def apply(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Append the sampled tokens, publish full blocks, end what is complete."""
        for seq in plan.rows:
            seq.num_in_flight -= 1
        for seq in plan.forked:
            seq.num_in_flight -= 1
        if outcome.error:
            self._fail(plan, outcome.error)
            return
        self._commit(plan)
        if plan.scores:
            self._keep_scores(plan, outcome)
        self._append_tokens(plan, outcome)
        self._stats.prefill_tokens_total += plan.num_prefill_tokens

    def _fail(self, plan: StepPlan, error: str) -> None:
        message = f"the step failed: {error}"
        for seq, end in zip(plan.rows, plan.context_lens, strict=True):
            if end <= seq.num_prompt:
                # The next step, in flight already, may have forked choices off these prompt positions.
                self._endings.finish_request(seq.request, FinishReason.ERROR, message)
            else:
                self._endings.finish(seq, FinishReason.ERROR, message)
        # What the step should have started has no sampling state.
        for seq in plan.starts:
            self._endings.finish(seq, FinishReason.ERROR, message)

    def _commit(self, plan: StepPlan) -> None:
        """Every position of the step is computed now, and its token known: the step before sampled it."""
        block_tokens = self._block_tokens
        for seq, end in zip(plan.rows, plan.context_lens, strict=True):
            if end - seq.num_committed < block_tokens or seq.state != RUNNING:
                continue
            end -= end % block_tokens
            try:
                self._kv.commit(seq.seq_id, seq.tokens[seq.num_committed : end])
                seq.num_committed = end
                # Own blocks may have given way to equal published ones.
                seq.block_table = self._kv.block_table(seq.seq_id)
            except Exception as error:  # the boundary of one request: the others go on
                self._endings.finish(seq, FinishReason.ERROR, f"the KV cache refused its tokens: {error!r}")

    def _keep_scores(self, plan: StepPlan, outcome: StepOutcome) -> None:
        for seq, (_, token, _), (logprob, rank, top) in zip(
            plan.scored, plan.scores, outcome.scores, strict=True
        ):
            seq.request.prompt_scores.append(TokenLogprob(token, logprob, rank, tuple(top)))

    def _append_tokens(self, plan: StepPlan, outcome: StepOutcome) -> None:
        tokens = outcome.tokens
        if len(tokens) != len(plan.sampled):
            self._fail(plan, f"{len(tokens)} tokens came back for {len(plan.sampled)} samples")
            return
        logprobs, ranks, tops = (
            (outcome.logprobs, outcome.ranks, outcome.tops) if plan.wants_logprobs else ((), (), ())
        )
        stats = self._stats
        for i, seq in enumerate(plan.sampled):
            if seq.state == FINISHED:
                stats.dropped_tokens_total += 1
                continue
            token = tokens[i]
            request = seq.request
            seq.num_pending -= 1
            seq.tokens.append(token)
            request.tenant.served += 1
            stats.generated_tokens_total += 1
            chosen: tuple[TokenLogprob, ...] = ()
            if request.wants_logprobs:
                chosen = (TokenLogprob(token, logprobs[i], ranks[i], tuple(tops[i])),)
            if token in request.stop_ids:
                self._end(seq, token, chosen, FinishReason.STOP, token)
            elif len(seq.tokens) >= seq.max_len:
                self._end(seq, token, chosen, FinishReason.LENGTH, None)
            else:
                self._endings.emit(seq, (token,), chosen)

    def _end(
        self,
        seq: Sequence,
        token: int,
        logprobs: tuple[TokenLogprob, ...],
        reason: FinishReason,
        stop_token_id: int | None,
    ) -> None:
        self._endings.emit(seq, (token,), logprobs, reason, stop_token_id)
        self._endings.close(seq, reason)
