"""What a policy was at which times of the stream, by the places of its changes. Pure. [PO-9, PO-11]

A change holds from its place on. There the stream had reached a time L, and everything before L
minus the lateness had been decided; all readings from then on, whether they waited or came later,
meet what the change brought. A reading that comes after the place with an earlier time is late and
meets nobody. So a change parts the readings at the time L minus the lateness, whatever clocks said
when it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from rapport.policy.engine.places import StreamPosition
from rapport.policy.life.changes import RecordedChange
from rapport.policy.life.registry import PolicyEntry, PolicyState, entry_after
from rapport.policy.runners.base import END_OF_TIME

BEGIN_OF_TIME = -END_OF_TIME


class PolicyPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """Readings with a time in [since, until) met the policy in one state."""

    since: int
    """BEGIN_OF_TIME: it was there before the first reading."""
    until: int = END_OF_TIME
    sees_from: int
    """The first readings it knows of: of a version that was a shadow, those of that time too."""
    state: PolicyState
    text: str
    version: str
    change: RecordedChange
    """What began it."""

    def begun_at(self, time: int) -> PolicyPeriod:
        """The same in a stream that began at a time, without a reading."""
        is_first = self.sees_from == BEGIN_OF_TIME
        return msgspec.structs.replace(self, sees_from=time) if is_first else self

    @property
    def is_running(self) -> bool:
        """Whether it saw the readings and told what it found."""
        return self.state == "running"


def periods_of(
    changes: Iterable[RecordedChange],
    name: str,
    lateness_ms: int,
    reached: Mapping[int, int],
    stopped: Mapping[str, int],
) -> list[PolicyPeriod]:
    """The periods of a policy in their order, one after the other without a gap.

    Args:
        changes: all that are on record; those of other policies tell how far time had come.
        reached: by position of `events` the largest time up to it, for places without a time.
        stopped: by id of a change the time of the detection that made it.
    """
    found: list[PolicyPeriod] = []
    entry: PolicyEntry | None = None
    turn = shadowed = BEGIN_OF_TIME
    resets = 0
    for kept in changes:
        place = kept.changed.place
        if place.resets > resets:  # what a clock that was ahead had reached counts no more
            turn, resets = BEGIN_OF_TIME, place.resets
        turn = max(
            turn, _turn_after_reset(kept, lateness_ms) or turn_of(place, lateness_ms, reached)
        )
        if kept.changed.name != name:
            continue
        before, entry = entry, entry_after(entry, kept)
        if kept.changed.what == "shadowed":
            shadowed = turn
        if entry is None or not _turns(before, entry, kept):
            continue
        # What a detection stops has told nothing after it, though more was read by then.
        since = min(turn, stopped.get(kept.id, turn))
        while found and found[-1].change.changed.place.resets < resets and found[-1].since > since:
            found.pop()
        found.append(
            PolicyPeriod(
                since=max(since, found[-1].since) if found else since,
                sees_from=shadowed if kept.changed.what == "promoted" else since,
                state=entry.state,
                text=entry.text,
                version=entry.version,
                change=kept,
            )
        )
    return _ended(found)


def _turn_after_reset(kept: RecordedChange, lateness_ms: int) -> int | None:
    """Where time had just begun anew: by the clock at which the change was made."""
    place = kept.changed.place
    return kept.time - lateness_ms if place.resets and place.time <= BEGIN_OF_TIME else None


def turn_of(place: StreamPosition, lateness_ms: int, reached: Mapping[int, int]) -> int:
    """The time of the first readings that meet what changed at a place."""
    time = place.time
    if needs_time(place):
        time = reached.get(place.after, BEGIN_OF_TIME)
    return BEGIN_OF_TIME if time <= BEGIN_OF_TIME else time - lateness_ms


def needs_time(place: StreamPosition) -> bool:
    """Whether only its position is known: it lies behind all that an ended process had read."""
    return place.time <= BEGIN_OF_TIME and place.after > 0


def period_at(periods: Sequence[PolicyPeriod], at: int) -> PolicyPeriod | None:
    """The one that readings of a time met; None before the first, or when there is none."""
    return next((one for one in reversed(periods) if one.since <= at), None)


def running_near(periods: Sequence[PolicyPeriod], start: int, end: int) -> PolicyPeriod | None:
    """The last one in which it ran at some time between two."""
    near = [one for one in periods if one.is_running and one.since <= end and one.until > start]
    return near[-1] if near else None


def _turns(before: PolicyEntry | None, after: PolicyEntry, kept: RecordedChange) -> bool:
    """Whether another period begins. The same plan goes on, unless it was made to begin anew."""
    if before is None or kept.changed.what == "resumed":
        return True
    return (before.state, before.version) != (after.state, after.version)


def _ended(periods: list[PolicyPeriod]) -> list[PolicyPeriod]:
    """Each until the next; of those that begin at one time only the last was ever there."""
    ended = [
        msgspec.structs.replace(one, until=after.since)
        for one, after in pairwise(periods)
        if one.since < after.since
    ]
    return [*ended, *periods[-1:]]
