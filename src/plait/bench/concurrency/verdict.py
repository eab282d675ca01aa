"""What the numbers of a report say, in plain sentences. Every claim is one that the numbers make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.bench.concurrency.report import ConcurrencyReport, Row

# Ways of running whose rounds overlap, or that differ by less, are called equal.
_EQUAL = 0.01


def verdicts(report: ConcurrencyReport) -> list[str]:
    """For each load and number of clients, with the most threads: which mode wins and why, then which parallelism."""
    sentences = []
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in report.rows:
        groups.setdefault((row.load, row.clients), []).append(row)
    for (load, clients), rows in groups.items():
        where = f"{load}, {clients_text(clients)}"
        most = max(row.candidate.threads for row in rows)
        rows = [row for row in rows if row.candidate.threads == most]
        parallelism = rows[0].candidate.parallelism
        modes = [row for row in rows if row.candidate.parallelism == parallelism]
        if len(modes) > 1:
            sentences.append(f"{where}, {parallelism}: {_winner(modes, lambda row: row.candidate.mode)}")
        mode = max(modes, key=_speed).candidate.mode
        ways = [row for row in rows if row.candidate.mode == mode]
        if len(ways) > 1:
            sentences.append(f"{where}, {mode}: {_winner(ways, lambda row: row.candidate.parallelism)}")
    return sentences


def clients_text(clients: int) -> str:
    return f"{clients} client{'s' * (clients != 1)}"


def _speed(row: Row) -> float:
    return row.median["requests_per_s"]


def _winner(rows: Sequence[Row], name: Callable[[Row], str]) -> str:
    ranked = sorted(rows, key=_speed, reverse=True)
    best, last = ranked[0], ranked[-1]
    equals = [row for row in ranked[1:] if _is_equal(best, row)]
    others = [row for row in ranked[1:] if row not in equals]
    speed = f"{_speed(best):.2f} requests/s"
    if not others:
        return f"no difference that the rounds bear out; all at about {speed}."
    winners = " and ".join(name(row) for row in (best, *equals))
    losers = ", ".join(f"{name(row)} by {_speed(best) / _speed(row) - 1:.1%}" for row in others)
    verb = "leads" if not equals else "lead"
    return f"{winners} {verb} with {speed}, ahead of {losers}. {_reason(best, last, name(last))}"


def _is_equal(best: Row, row: Row) -> bool:
    """Within _EQUAL, or the rounds of the two overlap (one round alone does not tell how far they scatter)."""
    gap = _speed(best) / _speed(row) - 1
    has_rounds = best.lowest["requests_per_s"] < best.highest["requests_per_s"]
    return gap < _EQUAL or (has_rounds and row.highest["requests_per_s"] >= best.lowest["requests_per_s"])


def _reason(best: Row, last: Row, last_name: str) -> str:
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
    if a["step_mean_s"] < 0.98 * b["step_mean_s"]:
        claims.append(f"a step takes {a['step_mean_s'] * 1e3:.2f} ms, not {b['step_mean_s'] * 1e3:.2f} ms")
    if a["steps"] < 0.95 * b["steps"]:
        claims.append(f"it needs {a['steps']:.0f} steps, not {b['steps']:.0f}")
    if a["cpu_share"] - b["cpu_share"] > 0.01:
        claims.append(f"it uses {a['cpu_share']:.0%} of the cores, not {b['cpu_share']:.0%}")
    if not claims:
        return f"Neither steps, gaps nor CPU use explain the lead over {last_name}."
    text = claims[0] if len(claims) == 1 else ", ".join(claims[:-1]) + ", and " + claims[-1]
    return f"Compared with {last_name}, {text}."
