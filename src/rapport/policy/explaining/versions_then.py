"""Which version of a policy ran at a time, by what is on record about policies. [PO-9, PO-11]"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.channel.channel import Channels
from rapport.core.times import format_time
from rapport.policy.explaining.verdict import Note
from rapport.policy.life.changes import CHANNEL, WITH_TEXT, KeptChange, kept_change
from rapport.policy.runners.base import END_OF_TIME

_PAGE = 1_000


class VersionThen(msgspec.Struct, frozen=True):
    """The text in force, empty when nothing is on record, and what people should know about it."""

    text: str = ""
    notes: tuple[Note, ...] = ()
    began: int | None = None
    """The time of the stream at which it began; None: not known, or after the time asked about."""


async def changes_on_record(channels: Channels) -> list[KeptChange]:
    """All changes of policies; empty for a log that has none."""
    found: list[KeptChange] = []
    if CHANNEL not in channels.names():
        return found
    channel, position = channels.channel(CHANNEL), 0
    while batch := await channel.read_after(position, limit=_PAGE):
        position = batch[-1].position
        found += [kept for stored in batch if (kept := kept_change(stored)) is not None]
    return found


def version_then(changes: Sequence[KeptChange], name: str, at: int) -> VersionThen:
    """What ran at the time; before the first version the first one, and a note that says so."""
    own = [
        kept for kept in changes if kept.changed.name == name and kept.changed.what != "shadowed"
    ]
    brought = [kept for kept in own if kept.changed.what in WITH_TEXT]
    if not brought:
        return VersionThen()
    before = [kept for kept in brought if kept.time <= at]
    chosen = before[-1] if before else brought[0]
    notes = tuple(_notes(own, chosen, at))
    return VersionThen(chosen.changed.text, notes, _began(own, chosen, at))


def _began(own: Sequence[KeptChange], chosen: KeptChange, at: int) -> int | None:
    """It begins anew with every version, and when it is resumed or rebuilt."""
    since = [kept for kept in own if kept.position >= chosen.position and kept.time <= at]
    anew = [kept for kept in since if kept.changed.what in (*WITH_TEXT, "resumed", "rebuilt")]
    time = anew[-1].changed.place.time if anew else -END_OF_TIME
    return time if time > -END_OF_TIME else None


def version_named(changes: Sequence[KeptChange], name: str, version: str) -> str:
    """The text of a version, empty when it is not on record."""
    for kept in reversed(changes):
        changed = kept.changed
        if (changed.name, changed.version) == (name, version) and changed.text:
            return changed.text
    return ""


def _notes(own: Sequence[KeptChange], chosen: KeptChange, at: int) -> list[Note]:
    notes = []
    if chosen.time > at:
        text = f"the policy was registered only at {format_time(chosen.time)}: it saw nothing then"
        notes.append(_note(text, chosen))
    last = [kept for kept in own if chosen.position < kept.position and kept.time <= at]
    for kept in last:
        match kept.changed.what:
            case "paused":
                notes = [_note(f"paused since {_when(kept)}: it saw nothing", kept)]
            case "deleted":
                notes = [_note(f"deleted at {_when(kept)}", kept)]
            case "broken":
                notes = [_note(f"broken since {_when(kept)}: {_reason(kept)}", kept)]
            case "resumed" | "rebuilt":
                text = f"began anew at {_when(kept)} ({kept.changed.what})"
                notes = [_note(text, kept)]
            case _:
                continue
    later = [kept for kept in own if kept.time > at and kept.changed.what in WITH_TEXT]
    if later and chosen.time <= at:
        text = f"since {_when(later[-1])} another version is in force; this is what ran then"
        notes.append(_note(text, later[-1]))
    return notes


def _when(kept: KeptChange) -> str:
    by = f" by {kept.changed.by}" if kept.changed.by else ""
    return format_time(kept.time) + by


def _reason(kept: KeptChange) -> str:
    return "; ".join(problem.message for problem in kept.changed.problems)


def _note(text: str, kept: KeptChange) -> Note:
    return Note(kind="policy", text=text, time=kept.time, event=kept.id)
