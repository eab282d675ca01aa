"""From the scheduler's plan to the native StepInput."""

from __future__ import annotations

from typing import Any

from plait.engine.parts import EngineParts, StepInput
from plait.scheduler import RequestState, Sequence, StepPlan


def build_step(parts: EngineParts, plan: StepPlan) -> StepInput:
    step = parts.new_step()
    step.step_id = plan.step_id
    step.token_ids = plan.token_ids
    step.seq_slots = plan.seq_slots
    step.query_starts = plan.query_starts
    step.context_lens = plan.context_lens
    step.block_tables = plan.block_tables
    step.sample_rows = plan.sample_rows
    step.sample_slots = plan.sample_slots
    # The rest is empty in most steps: leave the native default.
    if plan.copies:
        step.copies = plan.copies
    if plan.scores:
        step.scores = plan.scores
    if plan.starts:
        step.slot_starts = [_slot_start(parts, seq) for seq in plan.starts]
    return step


def check_sampling(parts: EngineParts, request: RequestState) -> None:
    """Raises when the native side would not take the request's sampling parameters."""
    _new_slot_start(parts, request, slot=0, prompt_ids=[0], output_ids=[], seed=0)


def _slot_start(parts: EngineParts, seq: Sequence) -> Any:
    return _new_slot_start(
        parts,
        seq.request,
        slot=seq.slot,
        prompt_ids=seq.prompt_ids,
        output_ids=seq.output_ids,
        seed=seq.seed,
    )


def _new_slot_start(
    parts: EngineParts,
    request: RequestState,
    *,
    slot: int,
    prompt_ids: list[int],
    output_ids: list[int],
    seed: int,
) -> Any:
    sampling = request.request.sampling
    return parts.new_slot_start(
        slot=slot,
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        temperature=float(sampling.temperature),
        top_p=float(sampling.top_p),
        top_k=max(sampling.top_k, 0),
        min_p=float(sampling.min_p),
        repetition_penalty=float(sampling.repetition_penalty),
        presence_penalty=float(sampling.presence_penalty),
        frequency_penalty=float(sampling.frequency_penalty),
        seed=seed,
        num_logprobs=-1 if sampling.logprobs is None else sampling.logprobs,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sorted(request.stop_ids),
        logit_bias=[(token_id, float(bias)) for token_id, bias in sampling.logit_bias],
    )
