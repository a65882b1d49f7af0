"""The versions of a policy over stream time, from the recorded changes. [PO-9, PO-11]

At the position of a change the stream had reached a time L, and everything before L minus the
lateness was decided. All later readings, buffered or new, are evaluated with the change; a later
reading with an earlier time is late and is not evaluated. So a change divides readings at the time
L minus the lateness, independent of any clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from rapport.channel.channel import Channel, Channels, pages_of
from rapport.core.detection import DETECTED, Detection
from rapport.core.times import format_time
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.engine.stream_steps import TIME_TYPE, StreamPosition, TimeMoved
from rapport.policy.explain.answer import AnswerNote
from rapport.policy.lifecycle.registry import (
    CHANNEL,
    PolicyEntry,
    PolicyState,
    RecordedChange,
    entry_after,
    recorded_change,
)
from rapport.policy.operators.base import END_OF_TIME

BEGIN_OF_TIME = -END_OF_TIME
_PAGE = 1_000
_LOOKED_BACK = 5_000
"""Events before a position that are read to find the time reached there."""
_SAME_TIME_MS = 60_000


class PolicyPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the policy for readings with a time in [since, until)."""

    since: int
    """BEGIN_OF_TIME: before the first reading."""
    until: int = END_OF_TIME
    sees_from: int
    """The first readings it received; for a promoted shadow, those of the shadow's time too."""
    state: PolicyState
    text: str
    version: str
    change: RecordedChange
    """The change that began it."""

    def begun_at(self, time: int) -> PolicyPeriod:
        """The same for a stream that the clock started at a time, without a reading."""
        is_first = self.sees_from == BEGIN_OF_TIME
        return msgspec.structs.replace(self, sees_from=time) if is_first else self

    @property
    def is_running(self) -> bool:
        return self.state == "running"


def periods_of(
    changes: Iterable[RecordedChange],
    name: str,
    lateness_ms: int,
    reached: Mapping[int, int],
    stopped: Mapping[str, int],
) -> list[PolicyPeriod]:
    """The consecutive periods of a policy, without gaps.

    `changes`: all recorded ones; those of other policies show the reached time. `reached`: by
    position of `events`, the largest time so far, for positions without a time. `stopped`: by id of
    a change, the time of the detection that caused it.
    """
    found: list[PolicyPeriod] = []
    entry: PolicyEntry | None = None
    turn = shadowed = BEGIN_OF_TIME
    resets = 0
    for kept in changes:
        place = kept.changed.place
        if place.resets > resets:  # times reached by a clock that was ahead do not count
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
        # A policy stopped by a detection emitted nothing after it, though more was read.
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
    """The turn by the clock, for a change made directly after a time reset."""
    place = kept.changed.place
    return kept.time - lateness_ms if place.resets and place.time <= BEGIN_OF_TIME else None


def turn_of(place: StreamPosition, lateness_ms: int, reached: Mapping[int, int]) -> int:
    """The time of the first readings that a change at a position applies to."""
    time = place.time
    if needs_time(place):
        time = reached.get(place.after, BEGIN_OF_TIME)
    return BEGIN_OF_TIME if time <= BEGIN_OF_TIME else time - lateness_ms


def needs_time(place: StreamPosition) -> bool:
    """Whether only the position is known, because it lies behind everything that an ended process
    read.
    """
    return place.time <= BEGIN_OF_TIME and place.after > 0


def period_at(periods: Sequence[PolicyPeriod], at: int) -> PolicyPeriod | None:
    """The period of readings of a time; None before the first."""
    return next((one for one in reversed(periods) if one.since <= at), None)


def running_near(periods: Sequence[PolicyPeriod], start: int, end: int) -> PolicyPeriod | None:
    """The last running period that overlaps the range."""
    near = [one for one in periods if one.is_running and one.since <= end and one.until > start]
    return near[-1] if near else None


def _turns(before: PolicyEntry | None, after: PolicyEntry, kept: RecordedChange) -> bool:
    """Whether a new period begins: the state or version changes, or the policy is restarted."""
    if before is None or kept.changed.what == "resumed":
        return True
    return (before.state, before.version) != (after.state, after.version)


def _ended(periods: list[PolicyPeriod]) -> list[PolicyPeriod]:
    """Sets the end of each period; of periods with the same beginning only the last counts."""
    ended = [
        msgspec.structs.replace(one, until=after.since)
        for one, after in pairwise(periods)
        if one.since < after.since
    ]
    return [*ended, *periods[-1:]]


async def changes_on_record(channels: Channels) -> list[RecordedChange]:
    """All policy changes in the log."""
    found: list[RecordedChange] = []
    if CHANNEL not in channels.names():
        return found
    channel, position = channels.channel(CHANNEL), 0
    while batch := await channel.read_after(position, limit=_PAGE):
        position = batch[-1].position
        found += [kept for stored in batch if (kept := recorded_change(stored)) is not None]
    return found


async def periods_on_record(
    channels: Channels,
    changes: Sequence[RecordedChange],
    name: str,
    streams: Collection[str],
    lateness_ms: int,
) -> list[PolicyPeriod]:
    """The periods of a policy; empty when nothing is recorded.

    Reads some thousand events for each change made during the catch-up after a crash, and one for
    each change caused by a detection; most nodes have neither.
    """
    own = [kept for kept in changes if kept.changed.name == name]
    places = {kept.changed.place for kept in own}
    reached: dict[int, int] = {}
    for place in places:
        if needs_time(place):
            reached[place.after] = await _reached(channels.channel("events"), place.after, streams)
    stopped: dict[str, int] = {}
    for kept in own:
        if kept.changed.cause:
            found = await channels.find_event(kept.changed.cause)
            times = [one.event.time for _, one in found if one.event.type == DETECTED]
            if times:
                stopped[kept.id] = times[0] + 1
    return periods_of(changes, name, lateness_ms, reached, stopped)


async def begun_by_clock(channels: Channels, lateness_ms: int) -> int | None:
    """From when silence counts in a stream that the clock started without a reading; None in
    others. Reads only the first events of `detections`, because nothing precedes that.
    """
    if "detections" not in channels.names():
        return None
    for stored in await channels.channel("detections").read_after(0):
        if stored.event.type == TIME_TYPE:
            moved: TimeMoved = stored.event.payload_as(TimeMoved)
            if moved.begins:
                return moved.time - lateness_ms
    return None


async def _reached(channel: Channel, position: int, streams: Collection[str]) -> int:
    """The largest reading time up to a position, by the events just before it."""
    reached, after = BEGIN_OF_TIME, max(0, position - _LOOKED_BACK)
    async for batch in pages_of(channel, after, limit=_LOOKED_BACK, last=position):
        for one in batch:
            if one.event.type in streams and one.event.time <= one.received + ALLOWED_SKEW_MS:
                reached = max(reached, min(one.event.time, one.received))
    return reached


class VersionAtTime(msgspec.Struct, frozen=True):
    """The period to explain, and notes about it."""

    period: PolicyPeriod
    notes: tuple[AnswerNote, ...]
    ran: bool


def version_at_time(
    periods: Sequence[PolicyPeriod], at: int, near: PolicyPeriod | None
) -> VersionAtTime | None:
    """The period of readings of the time; before the first version, the first one with a note. None
    when nothing is recorded.

    `near`: a period in which the policy ran shortly before or after.
    """
    if not periods:
        return None
    met = period_at(periods, at)
    period = met or periods[0]
    ran = met is not None and met.is_running
    if not ran and near is not None:
        period, ran = near, True
    return VersionAtTime(period, tuple(_notes(periods, period, met)), ran)


def version_of(periods: Sequence[PolicyPeriod], detection: Detection) -> PolicyPeriod | None:
    """The period in which a detection was found; the last of its version where its time has none;
    None when nothing is recorded.
    """
    own = [one for one in periods if one.version == detection.version]
    met = [one for one in own if one.since <= detection.time < one.until]
    return met[-1] if met else own[-1] if own else None


def _notes(
    periods: Sequence[PolicyPeriod], chosen: PolicyPeriod, met: PolicyPeriod | None
) -> list[AnswerNote]:
    notes: list[AnswerNote] = []
    if met is None:
        text = f"the policy was registered only at {_when(periods[0])}: it saw nothing before"
        notes.append(_note(text, periods[0]))
    elif not met.is_running:
        notes.append(_note(_idle(met), met))
    elif met.change.changed.what in ("resumed", "rebuilt"):
        text = f"began anew at {_when(met)} ({met.change.changed.what})"
        notes.append(_note(text, met))
    newest = periods[-1]
    if newest.version != chosen.version and newest.text and newest.since > chosen.since:
        text = f"since {_when(newest)} another version is in force; this is what ran then"
        notes.append(_note(text, newest))
    return notes


def _idle(period: PolicyPeriod) -> str:
    match period.state:
        case "paused":
            return f"paused since {_when(period)}: it saw nothing"
        case "broken":
            problems = period.change.changed.problems
            reason = "; ".join(problem.message for problem in problems)
            return f"broken since {_when(period)}: {reason}"
        case _:
            return f"deleted at {_when(period)}"


def _when(period: PolicyPeriod) -> str:
    """The stream time of the change, and the clock time where it differs."""
    made, reached = period.change.time, period.change.changed.place.time
    by = f" by {period.change.changed.by}" if period.change.changed.by else ""
    if reached <= BEGIN_OF_TIME:
        reached = period.since if period.since > BEGIN_OF_TIME else made
    if abs(made - reached) <= _SAME_TIME_MS:
        return format_time(made) + by
    return f"{format_time(reached)} of the readings' time (made at {format_time(made)}{by})"


def _note(text: str, period: PolicyPeriod) -> AnswerNote:
    since = period.since if period.since > BEGIN_OF_TIME else period.change.time
    return AnswerNote(kind="policy", text=text, time=since, event=period.change.id)
