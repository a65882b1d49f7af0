"""Whether occurrences are a match, and whether the absence it asks for holds. [PO-6, PO-7]"""

from __future__ import annotations

import numpy as np

from rapport.policy.runners.operators.absence import SearchSpan, counterexamples, refuted
from rapport.policy.runners.operators.shapes import (
    ClauseShape,
    Combination,
    NotFollowed,
    NotPreceded,
    Occurs,
    Ordered,
    Part,
    PlanShape,
)
from rapport.policy.runners.operators.table import Array, Columns, Mask, count
from rapport.policy.runners.operators.varying import NEED
from rapport.policy.runners.operators.window import Window

NEVER = np.int64(2**62)
"""The time at which what does not hold is satisfied."""

Outcome = tuple[Mask, Array, Array | None]
"""Which rows satisfy a part, when, and the end it counts with (None: it has no time)."""


def matched_at(
    window: Window, shape: PlanShape, number: int, frame: Columns, *, assume_absence: bool = False
) -> Array:
    """When each row is a minimal match of the combination (its last clause satisfied); NEVER when
    it is none.

    With `assume_absence` what must not follow is taken not to: a first sieve before that is known.
    """
    combination = shape.combinations[number]
    when = _satisfied_at(window, combination, frame, assume_absence)
    if not assume_absence:
        for other in combination.smaller:
            smaller = _satisfied_at(window, shape.combinations[other], frame, False)
            when = np.where(smaller < NEVER, NEVER, when)
    return when


def _satisfied_at(
    window: Window, combination: Combination, frame: Columns, assume_absence: bool
) -> Array:
    aliases = aliases_of(window, combination)
    bound = {name: frame[name] for name in aliases}
    t0 = latest_end(window, combination, frame)
    outcomes = {
        part: part_outcome(window, part, frame, bound, t0, assume_absence)
        for part in combination.parts()
    }
    best = np.full(count(frame), NEVER)
    for choice in combination.choices:
        best = np.minimum(best, _choice_at(window, [outcomes[part] for part in choice]))
    return best


def _choice_at(window: Window, outcomes: list[Outcome]) -> Array:
    """When all parts of a choice hold with their ends in one window."""
    holds = np.logical_and.reduce([outcome[0] for outcome in outcomes])
    when = np.maximum.reduce([outcome[1] for outcome in outcomes])
    ends = [outcome[2] for outcome in outcomes if outcome[2] is not None]
    if len(ends) > 1:
        apart = np.maximum.reduce(ends) - np.minimum.reduce(ends)
        holds = holds & (apart < window.plan.window_ms)
    return np.where(holds, when, NEVER)


def part_outcome(
    window: Window,
    part: Part,
    frame: Columns,
    bound: Columns,
    t0: Array,
    assume_absence: bool = False,
) -> Outcome:
    """Rule 5 for one part; `bound` are the identities absence is looked for with."""
    always = np.ones(len(t0), np.bool_)
    if isinstance(part, Occurs):
        if window.is_constraint(part.term):
            return always, t0, None
        end = frame[f"end{part.term}"]
        return always, end, end
    if isinstance(part, Ordered):
        second = frame[f"end{part.second}"]
        return _ordered(part, frame), second, second
    if isinstance(part, NotFollowed):
        end = frame[f"end{part.first}"]
        when = end + part.window_ms
    else:
        end = when = frame[f"end{part.second}"]
    if assume_absence and is_awaited(window, part):
        return always, when, end
    return ~refuted(window, part.absent, bound, _span(window, part, frame, end)), when, end


def _ordered(part: Ordered, frame: Columns) -> Mask:
    """One before the other, as far as their clocks can be trusted, and within the window."""
    first, second = frame[f"end{part.first}"], frame[f"end{part.second}"]
    surely = first + blur_of(frame, part.first) < second - blur_of(frame, part.second)
    return np.asarray(surely & (second < first + part.window_ms), np.bool_)


def _span(
    window: Window, part: NotFollowed | NotPreceded, frame: Columns, end: Array
) -> SearchSpan:
    """Where an occurrence that must not be there would have to end."""
    unsure_ms = window.uncertainty_ms
    if isinstance(part, NotFollowed):
        blur = blur_of(frame, part.first)
        return SearchSpan(end - blur + 1, end + blur + part.window_ms, unsure_ms=unsure_ms)
    blur = blur_of(frame, part.second)
    return SearchSpan(end - blur - part.window_ms + 1, end + blur, unsure_ms=unsure_ms)


def blur_of(frame: Columns, term: int) -> Array | int:
    """How far the ends of a term's occurrences may be wrong."""
    return frame.get(f"blur{term}", 0)


def is_awaited(window: Window, part: Part) -> bool:
    """Whether it is not known at its end if it holds: what must not follow, or may, where clocks
    are uncertain, yet turn out to have preceded.
    """
    return isinstance(part, NotFollowed) or (
        isinstance(part, NotPreceded) and window.uncertainty_ms > 0
    )


def decided_at(window: Window, part: Part, frame: Columns) -> Array:
    """When an awaited part is known to hold or not."""
    after, [term] = window.uncertainty_ms, part.needs()
    if isinstance(part, NotFollowed):
        after += part.window_ms
    return np.asarray(frame[f"end{term}"] + blur_of(frame, term) + after)


def absence_for_some(
    window: Window, clause: ClauseShape, bound: Columns, t0: Array
) -> tuple[Mask, list[Columns]]:
    """Rule 4 for a family: which matches have no counterexample among events of [t0, t0 + window)
    for all of it, and the counterexamples that count for some, with their needs.
    """
    span = SearchSpan(t0, t0 + clause.window_ms, t0)
    holds, some = np.ones(len(t0), np.bool_), []
    for terms in clause.counterexamples:
        window.note_search()
        found = counterexamples(window, terms, bound, span)
        if NEED in found:
            some.append(found)
        else:
            holds[found["row"]] = False
    return holds, some


def absence_wait_ms(window: Window, clause: ClauseShape) -> int:
    """How long events may refute the clause's absence; facts of the tables are known at once."""
    terms = {term for terms in clause.counterexamples for term in terms}
    return 0 if all(map(window.is_constraint, terms)) else clause.window_ms


def latest_end(window: Window, combination: Combination, frame: Columns) -> Array:
    """t0 of each row."""
    ends = [frame[f"end{term}"] for term in combination.terms if not window.is_constraint(term)]
    latest: Array = np.maximum.reduce(ends)
    return latest


def aliases_of(window: Window, combination: Combination) -> list[str]:
    """The `@alias` columns of its rows."""
    steps = [window.plan.terms[term] for term in combination.terms]
    return sorted({f"@{side.alias}" for step in steps for side in (step.first, step.second)})
