"""Lint of windows, durations and silences against the periods that sources declare. [PO-12]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.core.times import format_duration
from rapport.policy.compiler.normal_form import atoms_of_expression
from rapport.policy.compiler.scope import aliases_of
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.tree import (
    Atomic,
    DurationCondition,
    Expression,
    SilenceCondition,
    SourceSpan,
)
from rapport.policy.lint.satisfiability import needs
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.plan import (
    CorrelationTerm,
    LastingTerm,
    Plan,
    Sequence,
    Side,
    SilentTerm,
    TermStep,
    signed_terms,
    streams_of_term,
)

Atoms = list[Atomic]
"""The terms, comparisons, durations and silences of a condition."""


def lint_times(plan: Plan, ontology: Ontology, condition: Expression, faults: Diagnostics) -> None:
    """Every warning about times, at its silence or duration, or at the first absence of the
    condition.
    """
    atoms = list(atoms_of_expression(condition))
    absence = next((atom.place for atom in atoms if getattr(atom, "negated", False)), None)
    lint_periods(plan, ontology, absence, faults)
    lint_meeting(plan, ontology, atoms[0].place, faults)
    lint_silence(plan, ontology, atoms, faults)
    lint_following_silence(plan, atoms, faults)
    lint_lasting(plan, ontology, atoms, faults)


def lint_periods(
    plan: Plan, ontology: Ontology, place: SourceSpan | None, faults: Diagnostics
) -> None:
    """Warns when an absence is decided sooner than the period of a source it depends on."""
    waits = list(_waits(plan))
    for name, source in ontology.sources.items():
        windows = [window for stream, window in waits if stream in source.streams]
        if not windows or source.period_ms <= min(windows):
            continue
        window, period = format_duration(min(windows)), format_duration(source.period_ms)
        faults.warn(
            "policy.window_shorter_than_period",
            f"the window of {window} is shorter than the period of {name!r}, {period}",
            place,
            hint=f"{name} need not report within it; widen the window to at least {period}",
        )


def lint_silence(plan: Plan, ontology: Ontology, atoms: Atoms, faults: Diagnostics) -> None:
    """Warns when a silence is shorter than the period of its source."""
    for term in (term for term in plan.terms if isinstance(term, SilentTerm)):
        for source in ontology.sources.values():
            if source.streams & set(term.streams):
                warn_short_silence(term.duration_ms, source, _place_of(term, atoms), faults)


def warn_short_silence(
    duration_ms: int, source: PushSource, place: SourceSpan | None, faults: Diagnostics
) -> None:
    """Warns unless the silence is longer than the period of the source."""
    if source.period_ms < duration_ms:
        return
    silence, period = format_duration(duration_ms), format_duration(source.period_ms)
    faults.warn(
        "policy.window_shorter_than_period",
        f"a silence of {silence} is usual for {source.name!r}, whose period is {period}",
        place,
        hint=f"wait longer than {period}",
    )


def lint_following_silence(plan: Plan, atoms: Atoms, faults: Diagnostics) -> None:
    """Warns about `X FOLLOWED-BY no event of S for D` that never holds: X is an event of S itself,
    so the silence takes at least D, and the window ends before.
    """
    for clause in plan.clauses:
        for child in clause.children:
            if not isinstance(child, Sequence) or child.first_negated or child.second_negated:
                continue
            first, second = plan.terms[child.first], plan.terms[child.second]
            window = next(w for w in (child.window_ms, clause.window_ms, plan.window_ms) if w)
            own = {side.stream for side in _ending_sides(first) if side.alias == second.first.alias}
            if not isinstance(second, SilentTerm) or not own & set(second.streams):
                continue
            if second.duration_ms >= window:
                silence, shown = format_duration(second.duration_ms), format_duration(window)
                faults.warn(
                    "policy.never_follows",
                    f"a silence of {silence} never follows within {shown}",
                    _place_of(second, atoms),
                    hint=f"give it more time: ... for {silence} within TIME, longer than {silence}",
                )


def lint_meeting(
    plan: Plan, ontology: Ontology, place: SourceSpan | None, faults: Diagnostics
) -> None:
    """Warns when two readings must meet in a window shorter than the period of their sources."""
    reported: set[str] = set()
    for window, streams in _meetings(plan):
        for stream in sorted(streams - reported):
            period = min(
                (one.period_ms for one in ontology.sources.values() if stream in one.streams),
                default=0,
            )
            if period <= window:
                continue
            reported.add(stream)
            shown, promised = format_duration(window), format_duration(period)
            faults.warn(
                "policy.window_shorter_than_period",
                f"two readings must come within {shown}, but {stream} comes only every {promised}",
                place,
                hint=f"widen the window to at least {promised}",
            )


def lint_lasting(plan: Plan, ontology: Ontology, atoms: Atoms, faults: Diagnostics) -> None:
    """Warns about a duration shorter than the period of its source, which one reading decides, and
    about one longer than `stale_after`, which a stale value ends.
    """
    for term in (term for term in plan.terms if isinstance(term, LastingTerm)):
        lasting, streams = format_duration(term.duration_ms), streams_of_term(term)
        place = _place_of(term, atoms)
        for source in ontology.sources.values():
            if not source.streams & streams:
                continue
            if source.period_ms > term.duration_ms:
                faults.warn(
                    "policy.for_shorter_than_period",
                    f"one reading decides what must last {lasting}: the next of {source.name!r} "
                    f"comes after up to {format_duration(source.period_ms)}",
                    place,
                    hint=f"let it last longer than {format_duration(source.period_ms)}",
                )
            if 0 < source.stale_after_ms < term.duration_ms and _may_turn_stale(source):
                stale = format_duration(source.stale_after_ms)
                faults.warn(
                    "policy.for_longer_than_known",
                    f"what must last {lasting} is unknown {stale} after a reading of "
                    f"{source.name!r}, and then it does not last",
                    place,
                    hint=f"give the source a period of at most {stale}, or a longer stale_after",
                )


def _place_of(term: LastingTerm | SilentTerm, atoms: Atoms) -> SourceSpan | None:
    """The place of the condition, or of the most similar one."""
    if isinstance(term, SilentTerm):
        silences = [atom for atom in atoms if isinstance(atom, SilenceCondition)]
        own = [
            atom
            for atom in silences
            if (atom.alias, atom.duration_ms) == (term.first.alias, term.duration_ms)
            and (not atom.attribute or f"{term.first.concept}.{atom.attribute}" in term.streams)
        ]
        return next((atom.place for atom in (*own, *silences)), None)
    lasting = [atom for atom in atoms if isinstance(atom, DurationCondition)]
    aliases = {term.first.alias, term.second.alias}
    same = [
        atom
        for atom in lasting
        if atom.duration_ms == term.duration_ms and set(aliases_of(atom.inner)) == aliases
    ]
    return next((atom.place for atom in (*same, *lasting)), None)


def _may_turn_stale(source: PushSource) -> bool:
    """Whether the source may be silent for longer than its values are valid."""
    return not 0 < source.period_ms <= source.stale_after_ms


def _meetings(plan: Plan) -> Iterator[tuple[int, frozenset[str]]]:
    """Windows in which two readings of these streams must come."""
    for clause in plan.clauses:
        for child in clause.children:
            for term in (plan.terms[number] for number in needs(child)):
                if isinstance(term, CorrelationTerm):
                    yield _first_of(term.window_ms, plan.window_ms), streams_of_term(term)
            if not isinstance(child, Sequence) or child.first_negated or child.second_negated:
                continue
            terms = (plan.terms[child.first], plan.terms[child.second])
            if any(isinstance(term, LastingTerm | SilentTerm) for term in terms):
                continue
            window = _first_of(child.window_ms, clause.window_ms, plan.window_ms)
            # Readings of two streams are independent; of one stream, both must come in the window.
            both = streams_of_term(terms[0]) & streams_of_term(terms[1])
            yield window, both


def _first_of(*windows: int | None) -> int:
    return next(window for window in windows if window is not None)


def _ending_sides(term: TermStep) -> tuple[Side, ...]:
    """The sides whose events end a term; durations and silences end later."""
    is_later = isinstance(term, LastingTerm | SilentTerm)
    return () if is_later else (term.first, term.second)


def _waits(plan: Plan) -> Iterator[tuple[str, int]]:
    """Each stream whose absence is required, with the time to wait."""
    for clause in plan.clauses:
        around = plan.window_ms if clause.window_ms is None else clause.window_ms
        for child in clause.children:
            own = child.window_ms if isinstance(child, Sequence) else None
            wait = around if own is None else own
            absent = [number for number, negated in signed_terms(child) if negated]
            yield from ((stream, wait) for stream in plan.streams_of(absent))
