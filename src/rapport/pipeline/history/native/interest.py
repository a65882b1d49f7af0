"""Which readings can have a part in what plans find: all others can be left out unread. [PI-5]

Judged reading by reading, by the tables alone; what is left gives the same detections, doubts and
suppressed ones. Lateness must have been judged before, by all readings. Silence is counted from
the first reading of all, whatever it says: where plans ask for it, its time (`began`) is given
here, and the readings of that moment are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rapport.pipeline.history.native.deciding import Deciding
from rapport.pipeline.history.native.possible import Possible, possible_identities, satisfying
from rapport.pipeline.history.native.values import Values, is_nothing, union
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import (
    CorrelationTerm,
    LastingTerm,
    Plan,
    QueryTerm,
    ReadingTerm,
    Side,
    SilentTerm,
    TermStep,
    state_atoms,
)

_MOST_PARTS = 24
"""More different wishes of one stream are taken together: asking costs too."""

Keys = frozenset[str]


class Wanted(msgspec.Struct, frozen=True):
    """Readings of a stream: whose, and with which values; None: anybody's, any."""

    stream: str
    keys: Keys | None = None
    values: Values | None = None


class Interest(msgspec.Struct, frozen=True):
    """The readings that matter: those that some part wants, and all of the watched sources."""

    wanted: tuple[Wanted, ...]
    sources: frozenset[str] = frozenset()
    """Their readings of any stream matter: how long they were silent makes absence doubtful."""
    began: int | None = None
    """All readings of this time matter: silence is counted from then."""

    def streams(self) -> frozenset[str]:
        """The streams of which something is wanted, besides those of watched sources."""
        return frozenset(part.stream for part in self.wanted)

    def of_stream(self, stream: str) -> tuple[Wanted, ...]:
        """What is wanted of one stream."""
        return tuple(part for part in self.wanted if part.stream == stream)

    def takes_all_of(self, stream: str) -> bool:
        """Whether no reading of the stream can be left out."""
        return Wanted(stream) in self.wanted


def interest_of(
    plans: Sequence[Plan],
    pull: PullData,
    sources: Mapping[str, PushSource] | None = None,
    *,
    began: int | None = None,
) -> Interest:
    """What all plans together want. Costs what looking through the tables costs, once per term.

    Args:
        sources: those of the site; one with a period is watched where absence depends on it.
        began: time of the first reading that is not late; not needed where `counts_silence` says
            so, or where operators are told it otherwise and run even without readings.
    """
    wanted = [part for plan in plans for part in _wanted_by(plan, pull)]
    watched = {name for plan in plans for name in watched_sources(plan, sources or {})}
    counts = any(counts_silence(plan, sources or {}) for plan in plans)
    return Interest(simplified(wanted), frozenset(watched), began if counts else None)


def counts_silence(plan: Plan, sources: Mapping[str, PushSource]) -> bool:
    """Whether it matters to the plan when the history began."""
    silent = any(isinstance(term, SilentTerm) for term in plan.terms)
    return silent or bool(watched_sources(plan, sources))


def simplified(wanted: Iterable[Wanted]) -> tuple[Wanted, ...]:
    """The same readings in fewer parts, sorted by stream."""
    by_stream: dict[str, list[Wanted]] = {}
    for part in wanted:
        if part.keys != frozenset() and not is_nothing(part.values):
            by_stream.setdefault(part.stream, []).append(part)
    return tuple(one for stream in sorted(by_stream) for one in _of_one(stream, by_stream[stream]))


def _wanted_by(plan: Plan, pull: PullData) -> Iterator[Wanted]:
    possible = possible_identities(plan, pull)
    for term in plan.terms:
        yield from _wanted_for(term, pull, possible)


def _wanted_for(term: TermStep, pull: PullData, possible: Possible) -> Iterator[Wanted]:
    """Of a term that one event decides, the events that can make it hold: others are no
    occurrences, and only occurrences count, under a NOT as well. Of all other terms, every event
    of those who can take part: one of a pair may meet any other, a state ends by what makes it
    false, and a silence by anything.
    """
    match term:
        case QueryTerm() | ReadingTerm():
            side = term.first if term.first.stream is not None else term.second
            values = Deciding(term, pull, possible).values()
            yield _by_side(side, pull, possible, values)
        case CorrelationTerm():
            yield _by_side(term.first, pull, possible)
            yield _by_side(term.second, pull, possible)
        case SilentTerm():
            for stream in term.streams:
                yield Wanted(stream, satisfying(term.first, pull, possible))
        case LastingTerm():
            by_alias = {side.alias: side for side in (term.second, term.first)}
            for atom in state_atoms(term.state):
                for side in (atom.term.first, atom.term.second):
                    if side.stream is not None:
                        whose = satisfying(by_alias[side.alias], pull, possible)
                        yield Wanted(side.stream, whose)


def _by_side(
    side: Side, pull: PullData, possible: Possible, values: Values | None = None
) -> Wanted:
    assert side.stream is not None
    return Wanted(side.stream, satisfying(side, pull, possible), values)


def _of_one(stream: str, parts: list[Wanted]) -> list[Wanted]:
    """Parts of one stream, taken together where that adds nothing or there are too many."""
    if any(part.keys is None and part.values is None for part in parts):
        return [Wanted(stream)]
    by_values: dict[Values | None, Keys | None] = {}
    for part in parts:
        known = by_values.get(part.values, frozenset())
        by_values[part.values] = None if part.keys is None or known is None else known | part.keys
    by_keys: dict[Keys | None, list[Values | None]] = {}
    for values, keys in by_values.items():
        by_keys.setdefault(keys, []).append(values)
    merged = [Wanted(stream, keys, _any_of(values)) for keys, values in by_keys.items()]
    kept = [one for one in merged if not any(_adds_nothing(one, other) for other in merged)]
    return kept if len(kept) <= _MOST_PARTS else [_together(stream, kept)]


def _any_of(values: list[Values | None]) -> Values | None:
    known = [value for value in values if value is not None]
    return union(known) if len(known) == len(values) else None


def _adds_nothing(one: Wanted, other: Wanted) -> bool:
    """Whether another part wants the same and more."""
    if one == other or (other.values is not None and one.values != other.values):
        return False
    return other.keys is None or (one.keys is not None and one.keys <= other.keys)


def _together(stream: str, parts: list[Wanted]) -> Wanted:
    keys = [part.keys for part in parts if part.keys is not None]
    whose = frozenset().union(*keys) if len(keys) == len(parts) else None
    return Wanted(stream, whose, _any_of([part.values for part in parts]))
