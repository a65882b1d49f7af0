"""Tables as they were known at a time, and who told it; so that an explanation names what it rests
on that came as no event. [PO-11, CX-8]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from rapport.policy.explaining.tables_then import KeptVersions, TablesOfVersions
from rapport.policy.explaining.verdict import Answer, Candidate, Known, Note
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan

_NOBODY: Mapping[str, str] = {}


class TablesThen(Protocol):
    """What was known at one time."""

    pull: PullData

    def known(self, concept: str, identity: str) -> Sequence[Known]:
        """What was asked for elsewhere about an instance, found or not."""

    def notes(self, concepts: Sequence[str]) -> Sequence[Note]:
        """What else was asked for about these concepts and not known then."""


AtTime = Callable[[int], Awaitable[TablesThen]]
"""By the time of the clock on the wall."""


class TablesAlways:
    """Tables of which nothing is known but how they are now."""

    def __init__(self, pull: PullData) -> None:
        self.pull = pull

    def known(self, concept: str, identity: str) -> Sequence[Known]:
        return ()

    def notes(self, concepts: Sequence[str]) -> Sequence[Note]:
        return ()


def always(pull: PullData) -> AtTime:
    """For who has no record of its tables; the versions that these keep themselves are used."""

    async def at(time: int) -> TablesThen:
        return (
            TablesOfVersions(pull, time) if isinstance(pull, KeptVersions) else TablesAlways(pull)
        )

    return at


def with_known(answer: Answer, plan: Plan, then: TablesThen) -> Answer:
    """The answer, each candidate with what was known of those it is about."""
    given = answer.given
    return msgspec.structs.replace(
        answer,
        fired=tuple(completed(one, plan, then) for one in answer.fired),
        candidates=tuple(completed(one, plan, then, given) for one in answer.candidates),
        notes=(*answer.notes, *([] if answer.fired else then.notes(sorted(plan.concepts())))),
    )


def completed(
    candidate: Candidate, plan: Plan, then: TablesThen, given: Mapping[str, str] = _NOBODY
) -> Candidate:
    """A candidate with what was known of those it binds, and of those who were `given`."""
    concepts = {
        side.alias: side.concept for term in plan.terms for side in (term.first, term.second)
    }
    about = {**given, **candidate.bindings}
    known = [
        one
        for alias, identity in sorted(about.items())
        if alias in concepts
        for one in then.known(concepts[alias], identity)
    ]
    return msgspec.structs.replace(candidate, known=tuple(dict.fromkeys(known)))
