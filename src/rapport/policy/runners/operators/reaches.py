"""How far back and ahead of a moment a plan looks, in milliseconds. [PO-3, PO-6]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.policy.ontology import PushSource
from rapport.policy.plan import CorrelationTerm, LastingTerm, Plan, Sequence, SilentTerm


def longest_window_ms(plan: Plan) -> int:
    """The largest of the policy's window and all its clauses' and sequences' own."""
    own = [clause.window_ms for clause in plan.clauses]
    own += [
        child.window_ms
        for clause in plan.clauses
        for child in clause.children
        if isinstance(child, Sequence)
    ]
    own += [term.window_ms for term in plan.terms if isinstance(term, CorrelationTerm)]
    return max([plan.window_ms, *(window for window in own if window is not None)])


def pair_window_ms(plan: Plan, term: CorrelationTerm) -> int:
    """How close the two events of a pair must be."""
    return plan.window_ms if term.window_ms is None else term.window_ms


def uncertainty_ms(plan: Plan, sources: Mapping[str, PushSource]) -> int:
    """How far the clock of any source of the plan may be wrong."""
    return max(uncertainties(plan, sources).values(), default=0)


def uncertainties(plan: Plan, sources: Mapping[str, PushSource]) -> dict[str, int]:
    """How far the clocks of the plan's sources may be wrong, of those that say so."""
    streams = plan.streams()
    return {
        name: one.uncertainty_ms
        for name, one in sources.items()
        if one.uncertainty_ms > 0 and not one.streams.isdisjoint(streams)
    }


def memory_ms(plan: Plan, uncertainty_ms: int, *, mixed: bool) -> int:
    """How long before the watermark an occurrence may still matter.

    An open match began its wait less than a window ago, and what it rests on ended less than a
    window before. Each followed-by reaches one window further back, with its earlier event another,
    and waits one longer. Where clocks are uncertain everything waits and reaches a little more.
    """
    windows = 2 if mixed else 1
    if any(isinstance(child, Sequence) for clause in plan.clauses for child in clause.children):
        windows = 6
    return windows * longest_window_ms(plan) + 4 * uncertainty_ms


def looks_ahead_only(plan: Plan, *, mixed: bool) -> bool:
    """Whether a match asks about the absence of nothing that came before its last event (rule 4),
    so that what came before every open match, and before the watermark, can be forgotten. Not where
    a followed-by has one NOT side, a mixed clause waits, or occurrences arise by time alone.
    """
    children = [child for clause in plan.clauses for child in clause.children]
    return not (
        mixed
        or any(isinstance(term, LastingTerm | SilentTerm) for term in plan.terms)
        or any(
            isinstance(child, Sequence) and child.first_negated != child.second_negated
            for child in children
        )
    )
