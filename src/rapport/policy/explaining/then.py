"""Tables as they were known at a time, and who told it; so that an explanation names what it rests
on that came as no event. [PO-11, CX-8]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from rapport.policy.explaining.tables_then import TableVersions, VersionedTables
from rapport.policy.explaining.verdict import AnswerNote, Candidate, ExternalFact, WhyNotAnswer
from rapport.policy.plan import Plan
from rapport.policy.runners.base import PullData

_NOBODY: Mapping[str, str] = {}


class TablesAtTime(Protocol):
    """What was known at one time."""

    pull: PullData

    def known(self, concept: str, identity: str) -> Sequence[ExternalFact]:
        """What was asked for elsewhere about an instance, found or not."""

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
        """What else was asked for about these concepts and not known then."""


TablesLookup = Callable[[int], Awaitable[TablesAtTime]]
"""By the time of the clock on the wall."""


class CurrentTables:
    """Tables of which nothing is known but how they are now."""

    def __init__(self, pull: PullData) -> None:
        self.pull = pull

    def known(self, concept: str, identity: str) -> Sequence[ExternalFact]:
        return ()

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
        return ()


def current_tables(pull: PullData) -> TablesLookup:
    """For who has no record of its tables; the versions that these keep themselves are used."""

    async def at(time: int) -> TablesAtTime:
        return (
            VersionedTables(pull, time) if isinstance(pull, TableVersions) else CurrentTables(pull)
        )

    return at


def with_external_facts(answer: WhyNotAnswer, plan: Plan, then: TablesAtTime) -> WhyNotAnswer:
    """The answer, each candidate with what was known of those it is about."""
    given = answer.given
    return msgspec.structs.replace(
        answer,
        fired=tuple(candidate_with_facts(one, plan, then) for one in answer.fired),
        candidates=tuple(candidate_with_facts(one, plan, then, given) for one in answer.candidates),
        notes=(*answer.notes, *([] if answer.fired else then.notes(sorted(plan.concepts())))),
    )


def candidate_with_facts(
    candidate: Candidate, plan: Plan, then: TablesAtTime, given: Mapping[str, str] = _NOBODY
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
