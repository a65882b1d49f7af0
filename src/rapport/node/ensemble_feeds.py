"""Channels that feed components: a field has the newest value of its events. [EN-14]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Event
from rapport.site.ensemble_ties import NOT_THERE, FeedTie, at

Assign = Callable[[str, Mapping[str, Any]], None]
"""Sets fields of a component; raises InvalidInput or UnknownName."""
NoteFault = Callable[[str, RapportError], None]
"""Keeps (component, what went wrong) for people."""
MOST_SUBJECTS = 1_000


class Feed:
    """One feed. The last values are kept with its place in the channel, so a component that starts
    anew is told them again.
    """

    def __init__(
        self, tie: FeedTie, channels: Channels, assign: Assign, note: NoteFault, *, number: int
    ) -> None:
        """`number`: tells it from other feeds of the channel into the same field."""
        self._tie, self._channels, self._assign, self._note = tie, channels, assign, note
        self._reader = f"ensemble.{tie.component}.{tie.field}.{number}"[:200]
        self.fed = 0

    async def run(self) -> None:
        """Works until cancelled. A new feed begins with the next event."""
        subscription = await self._channels.subscribe(
            self._tie.channel, self._reader, from_start=False
        )
        value = msgspec.msgpack.decode(subscription.state) if subscription.state else NOT_THERE
        if value is not NOT_THERE:
            self._give(value)
        while True:
            batch = await subscription.next_batch()
            fed = [one.event for one in batch if self.is_meant(one.event)]
            state = None
            if fed:
                value = self.after(value, fed)
                self._give(value)
                state = msgspec.msgpack.encode(value) if value is not NOT_THERE else None
            await subscription.commit(batch[-1].position, state)

    def is_meant(self, event: Event) -> bool:
        """Whether the feed is about such an event."""
        tie = self._tie
        return (not tie.type or event.type == tie.type) and fnmatchcase(event.subject, tie.subject)

    def after(self, value: Any, events: Sequence[Event]) -> Any:
        """The field's value after some events. What cannot be read changes nothing, nor does what
        cannot be kept: that is noted.
        """
        for event in events:
            try:
                found = at(event.payload(), self._tie.value)
            except InvalidInput:
                found = NOT_THERE
            if found is NOT_THERE or not self._can_be_kept(found):
                continue
            value = found if not self._tie.by_subject else _with(value, event.subject, found)
        return value

    def _can_be_kept(self, found: Any) -> bool:
        try:
            msgspec.msgpack.encode(found)
        except (OverflowError, ValueError, RecursionError) as error:
            # Met only when the place is saved, it would be read again and again.
            fault = InvalidInput(
                f"a value of the channel {self._tie.channel!r} cannot be kept: {error}"[:300],
                code="ensemble.bad_value",
                hint="numbers have at most 64 bits; send larger ones as text",
            )
            self._note(self._tie.component, fault)
            return False
        return True

    def _give(self, value: Any) -> None:
        if value is NOT_THERE:
            return
        try:
            self._assign(self._tie.component, {self._tie.field: value})
            self.fed += 1
        except RapportError as error:
            self._note(self._tie.component, error)


def _with(value: Any, subject: str, found: Any) -> dict[str, Any]:
    """The values by subject with a new one, which is last; the oldest go when there are many."""
    kept = {**value} if isinstance(value, dict) else {}
    kept.pop(subject, None)
    kept[subject] = found
    while len(kept) > MOST_SUBJECTS:
        del kept[next(iter(kept))]
    return kept
