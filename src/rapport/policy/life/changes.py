"""Changes of policies as events of one channel. [PO-9, PO-10]

The channel `policies` is the one truth about which policies run since when: files only add changes
to it. Each change has its place in the stream, so a second reading meets it there again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.core.errors import Problem
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id
from rapport.policy.engine.places import StreamPosition

CHANNEL = "policies"
CHANGED = "rapport.policies.changed"
BY_FILES = "files of the site"

ChangeKind = Literal[
    "registered",
    "replaced",
    "paused",
    "resumed",
    "deleted",
    "shadowed",
    "promoted",
    "dropped",
    "rebuilt",
    "broken",
]
"""`rebuilt`: the same text gave another plan, or gives one again; `broken`: it gives none any
more."""
WITH_TEXT: tuple[ChangeKind, ...] = ("registered", "replaced", "shadowed", "promoted")
"""Changes that bring a version."""


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of one policy, which holds from `place` on."""

    what: ChangeKind
    name: str
    place: StreamPosition
    number: int
    """Counts the changes of a node from 1."""
    text: str = ""
    """Of the version that the change brings."""
    version: str = ""
    actions: tuple[str, ...] = ()
    by: str = ""
    is_from_file: bool = False
    problems: tuple[Problem, ...] = ()
    """Why it cannot run."""
    cause: str = ""
    """Id of the detection because of which it was made."""


class RecordedChange(msgspec.Struct, frozen=True):
    """A change on record: its id, when it was made, and where it stands."""

    id: str
    time: int
    position: int
    changed: PolicyChange


def change_id(changed: PolicyChange) -> str:
    """What a detection causes has one id however often the detection is found; other changes are
    told apart by their number.
    """
    if changed.cause:
        return command_id(changed.what, changed.name, changed.cause)
    return content_id(CHANNEL, str(changed.number), changed.what, changed.name, changed.version)


def command_id(what: str, name: str, cause: str) -> str:
    """The id of what a detection does to a policy."""
    return content_id(CHANNEL, "because", what, name, cause)


def change_event(changed: PolicyChange, source: str, time_ms: int) -> Event:
    """The event that puts a change on record."""
    return make_event(
        source=source,
        id=change_id(changed),
        type=CHANGED,
        subject=f"policy/{changed.name}",
        time=time_ms,
        data=changed,
        headers={CAUSE: cause_text(changed.cause)} if changed.cause else {},
    )


def recorded_change(stored: StoredEvent) -> RecordedChange | None:
    """The change that an event of the channel is; None for other events. Raises InvalidInput for
    one that cannot be read.
    """
    event = stored.event
    if event.type != CHANGED:
        return None
    changed: PolicyChange = event.payload_as(PolicyChange)
    return RecordedChange(event.id, event.time, stored.position, changed)
