"""How changes of the directory are told in `log`. [CO-3, CO-12]

A change and the event that tells it become durable together; the event is appended right after, and
once more on opening if a crash came between. Equal ids make that harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.aside import run_aside
from rapport.core.event import Event, make_event
from rapport.kernel.clock import Clock
from rapport.store.base import Delete, Put, RecordStore

PEOPLE_CHANGED = "rapport.people.changed"
SOURCE = "communication"
_OUTBOX = "people.outbox"
_NAMES_PER_EVENT = 1_000
_PAGE = 200

What = Literal["added", "changed", "removed", "joined", "left"]


class PeopleChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of a change event; addresses in their shown form."""

    kind: Literal["peer", "collective"]
    name: str
    change: What
    by: str = ""
    settings: dict[str, Any] = {}
    members: list[str] = []


class PeopleOutbox:
    """Events that are to be told, kept until they are."""

    def __init__(
        self, records: RecordStore, channels: Channels, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        self._records, self._channels = records, channels
        self._clock, self._new_id = clock, new_id

    def entries(self, said: Sequence[PeopleChange]) -> list[Put]:
        """What is written together with the changes."""
        return [
            # Ids of the same millisecond sort by chance; the events are told in their order.
            Put(_OUTBOX, f"{event.time:015}.{number:06}.{event.id}", msgspec.msgpack.encode(event))
            for number, event in enumerate(map(self._event, said))
        ]

    async def tell(self) -> None:
        """Appends what waits, and forgets it."""
        while waiting := await run_aside(partial(self._records.find, _OUTBOX, limit=_PAGE)):
            events = [msgspec.msgpack.decode(raw, type=Event) for _, raw in waiting]
            await self._channels.channel("log").append(events)
            gone = [Delete(_OUTBOX, key) for key, _ in waiting]
            await run_aside(partial(self._records.apply, gone))

    def _event(self, change: PeopleChange) -> Event:
        return make_event(
            source=SOURCE,
            id=self._new_id(),
            type=PEOPLE_CHANGED,
            subject=f"{change.kind}:{change.name}",
            time=self._clock.now_ms(),
            data=change,
        )


def memberships(collective: str, change: What, peers: Sequence[str], by: str) -> list[PeopleChange]:
    """Who came or went, a bounded number of names per event."""
    return [
        PeopleChange(
            kind="collective",
            name=collective,
            change=change,
            by=by,
            members=list(peers[start : start + _NAMES_PER_EVENT]),
        )
        for start in range(0, len(peers), _NAMES_PER_EVENT)
    ]
