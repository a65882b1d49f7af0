"""Whether what was found rests on the absence of what a silent source might have told. [PO-7]"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.core.detection import Detection
from rapport.policy.plan import Plan
from rapport.policy.runners.operators.reaches import longest_window_ms
from rapport.policy.runners.operators.shapes import ClauseShape, NotFollowed, NotPreceded, PlanShape
from rapport.policy.runners.operators.table import Columns
from rapport.policy.runners.silence import SourceSilence


class AbsenceUncertainty:
    """The streams a plan's absence depends on, asked about at the time of each detection."""

    def __init__(
        self, plan: Plan, shape: PlanShape, silence: SourceSilence, uncertainty_ms: int
    ) -> None:
        self._window_ms, self._silence = longest_window_ms(plan), silence
        clauses = (*shape.positive, *shape.mixed)
        terms = {term for clause in shape.absent for term in _refuting(clause)}
        terms |= {term for clause in clauses for term in _negated(clause)}
        self._always = plan.streams_of(terms)
        self._by_clause = [plan.streams_of(_refuting(clause)) for clause in shape.mixed]
        silence.reach_back(self._window_ms + uncertainty_ms)

    def silent(self, found: list[Detection], frame: Columns) -> list[tuple[str, ...]]:
        """The silent sources that make each detection doubtful; `frame` says which of its mixed
        clauses were satisfied by absence.
        """
        streams = [set(self._always) for _ in found]
        for number, own in enumerate(self._by_clause):
            for place in frame[f"bare{number}"].nonzero()[0].tolist():
                streams[place] |= own
        return [
            self._silence.silent(own, item.time - self._window_ms, item.time)
            for item, own in zip(found, streams, strict=True)
        ]


def absence_uncertainty(
    plan: Plan, shape: PlanShape, silence: SourceSilence | None, uncertainty_ms: int = 0
) -> AbsenceUncertainty | None:
    """None when nothing can be in doubt: no such source, no absence, or `when unsure fire`."""
    if silence is None or plan.when_unsure == "fire":
        return None
    if not silence.watches(plan.absent_streams()):
        return None
    return AbsenceUncertainty(plan, shape, silence, uncertainty_ms)


def _refuting(clause: ClauseShape) -> Iterable[int]:
    return {term for terms in clause.counterexamples for term in terms}


def _negated(clause: ClauseShape) -> Iterable[int]:
    """Terms that must not follow or precede something."""
    parts = [part for part in clause.parts if isinstance(part, NotFollowed | NotPreceded)]
    return {term for part in parts for term in part.absent}
