"""What the numbers of a report say, in plain sentences. Every claim is one that the numbers make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait.bench.concurrency.report import ConcurrencyReport, Row

# Ways of running whose rounds overlap, or that differ by less, are called equal.
_EQUAL = 0.01


def verdicts(report: ConcurrencyReport) -> list[str]:
    """For each load and number of clients: who wins and why; then where more threads stop paying."""
    sentences = []
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in report.rows:
        groups.setdefault((row.load, row.clients), []).append(row)
    for (load, clients), rows in groups.items():
        most = max(row.candidate.threads for row in rows)
        at_most = [row for row in rows if row.candidate.threads == most]
        if len(at_most) > 1:
            sentences.append(f"{load}, {clients} clients: {_winner(at_most)}")
    return [*sentences, *_sweeps(report)]


def _winner(rows: Sequence[Row]) -> str:
    ranked = sorted(rows, key=lambda row: -row.median["requests_per_s"])
    best = ranked[0]
    last = ranked[-1]
    equals = [row for row in ranked[1:] if _is_equal(best, row)]
    speeds = best.median["requests_per_s"]
    if len(equals) == len(ranked) - 1:
        return f"no difference beyond that between rounds; all at about {speeds:.2f} requests/s."
    others = [row for row in ranked[1:] if row not in equals]
    lead = _name(best, rows) + "".join(f" and {_name(row, rows)}" for row in equals)
    against = ", ".join(
        f"{_name(row, rows)} by {speeds / row.median['requests_per_s'] - 1:.1%}" for row in others
    )
    verb = "wins" if not equals else "win"
    return f"{lead} {verb} with {speeds:.2f} requests/s, over {against}. {_reason(best, last, rows)}"


def _is_equal(best: Row, row: Row) -> bool:
    """Within _EQUAL, or the rounds of the two overlap (one round alone does not tell how far they scatter)."""
    gap = best.median["requests_per_s"] / row.median["requests_per_s"] - 1
    has_rounds = best.lowest["requests_per_s"] < best.highest["requests_per_s"]
    return gap < _EQUAL or (has_rounds and row.highest["requests_per_s"] >= best.lowest["requests_per_s"])


def _reason(best: Row, last: Row, rows: Sequence[Row]) -> str:
    """How the winner differs from the last one in what can make a difference."""
    a, b = best.median, last.median
    claims = []
    if a["busy_share"] - b["busy_share"] > 0.005:
        claims.append(
            f"its compute thread is in a step {a['busy_share']:.1%} of the time, not {b['busy_share']:.1%}"
        )
    if a["gap_mean_s"] < 0.9 * b["gap_mean_s"]:
        claims.append(
            f"{a['gap_mean_s'] * 1e3:.2f} ms pass between two steps, not {b['gap_mean_s'] * 1e3:.2f} ms"
        )
    if a["cpu_share"] - b["cpu_share"] > 0.01:
        claims.append(f"it uses {a['cpu_share']:.0%} of the cores, not {b['cpu_share']:.0%}")
    if a["steps"] < 0.95 * b["steps"]:
        claims.append(f"it needs {a['steps']:.0f} steps, not {b['steps']:.0f}")
    step_a, step_b = _step_s(a), _step_s(b)
    if step_a < 0.98 * step_b:
        claims.append(f"a step takes {step_a * 1e3:.1f} ms, not {step_b * 1e3:.1f} ms")
    if not claims:
        return f"Neither steps, gaps nor CPU use explain its lead over {_name(last, rows)}."
    text = claims[0] if len(claims) == 1 else ", ".join(claims[:-1]) + ", and " + claims[-1]
    return f"Against {_name(last, rows)}, {text}."


def _step_s(median: Mapping[str, float]) -> float:
    return median["busy_share"] * median["seconds"] / max(median["steps"], 1.0)


def _name(row: Row, rows: Sequence[Row]) -> str:
    """As short as it is clear among ``rows``."""
    candidate = row.candidate
    if len({other.candidate.parallelism for other in rows}) == 1:
        return candidate.mode
    if len({other.candidate.mode for other in rows}) == 1:
        return candidate.parallelism
    return f"{candidate.mode}/{candidate.parallelism}"


def _sweeps(report: ConcurrencyReport) -> Iterator[str]:
    for sweep in report.sweeps:
        speeds = ", ".join(f"{point.threads}: {point.requests_per_s:.2f}" for point in sweep.points)
        where = f"{sweep.load}, {sweep.clients} clients, {sweep.mode}, {sweep.parallelism}"
        most = sweep.points[-1].threads
        if sweep.pays_up_to == most:
            end = f"every thread up to {most} pays"
        else:
            end = f"threads beyond {sweep.pays_up_to} do not pay"
        yield f"{where}: {end} (requests/s by threads: {speeds})."
