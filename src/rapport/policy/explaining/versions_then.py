"""Which version of a policy met the readings of a time, by what is on record about policies. [PO-9,
PO-11]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from rapport.channel.channel import Channel, Channels
from rapport.channel.stretches import pages_of
from rapport.core.detection import DETECTED, Detection
from rapport.core.times import format_time
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.engine.events import TIME_TYPE, TimeMoved
from rapport.policy.explaining.periods import (
    BEGIN_OF_TIME,
    PolicyPeriod,
    needs_time,
    period_at,
    periods_of,
)
from rapport.policy.explaining.verdict import AnswerNote
from rapport.policy.life.changes import CHANNEL, RecordedChange, recorded_change

_PAGE = 1_000
_LOOKED_BACK = 5_000
"""So many events before a place tell how far time had come there."""
_SAME_TIME_MS = 60_000


async def changes_on_record(channels: Channels) -> list[RecordedChange]:
    """All changes of policies; empty for a log that has none."""
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
    """What a policy was when; empty when nothing is on record.

    Costs a look at some thousand events for each change that was made while a node caught up after
    a crash, and one for each that a detection made; most nodes have none of either.
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
    """From when silence counts in a stream that time began in without a reading; None in others.

    Costs a look at the first events of `detections`: nothing can be told before.
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
    """The largest time of a reading up to a position, by the events just before it."""
    reached, after = BEGIN_OF_TIME, max(0, position - _LOOKED_BACK)
    async for batch in pages_of(channel, after, limit=_LOOKED_BACK, last=position):
        for one in batch:
            if one.event.type in streams and one.event.time <= one.received + ALLOWED_SKEW_MS:
                reached = max(reached, min(one.event.time, one.received))
    return reached


class VersionAtTime(msgspec.Struct, frozen=True):
    """The period that is asked about, and what people should know about it."""

    period: PolicyPeriod
    notes: tuple[AnswerNote, ...]
    ran: bool
    """Whether the policy ran at the time."""


def version_at_time(
    periods: Sequence[PolicyPeriod], at: int, near: PolicyPeriod | None
) -> VersionAtTime | None:
    """What readings of the time met; before the first version the first one, and a note that says
    so. None when nothing is on record.

    `near`: where the policy did not run at the time, but did shortly before or after.
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
    """The period in which a detection was found; the last of its version where its time has none,
    None when nothing is on record.
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
    """The time that the stream had reached, and that of the clock where it is another one."""
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
