"""The marks of publishers on disk: saved now and then, completed from the log. [CH-6]

The events in the log carry their numbers, so the log alone is enough. The saved marks only keep the
first numbered append after a start from reading all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rapport.channel.sequences import (
    SEQUENCED_IN,
    Marks,
    MarksDraft,
    PositionOf,
    PublisherMarks,
    stamp_in,
)
from rapport.channel.shared import Parts
from rapport.core.codec import decode_block
from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Change, Delete, Put

_log = get_logger(__name__)

MARKS_TABLE, SAVED_TABLE = "sequence_marks", "sequences_saved"
SAVE_EVERY = 100_000
"""Positions between two savings: what the first numbered append after a start reads at most."""
_READ_RECORDS = 50_000


class SequenceKeeping:
    """The marks of one channel; every call comes from the writing thread.

    Nothing is loaded before the first numbered event, so channels without any pay one look at the
    headers of each event.
    """

    def __init__(self, channel: str, parts: Parts, position_of: PositionOf) -> None:
        self._channel, self._log, self._records = channel, parts.log, parts.records
        self._position_of = position_of
        self._marks: Marks | None = None
        self._saved = 0

    def draft(self, appends: Sequence[Sequence[Event]], last: int) -> MarksDraft | None:
        """What decides about the numbered events of a group; None when there are none.

        The log ends at `last`. Raises StoreUnavailable when marks cannot be loaded.
        """
        name = self._channel
        if not any(
            event.headers and event.headers.get(SEQUENCED_IN) == name
            for append in appends
            for event in append
        ):
            return None
        if self._marks is None:
            self._marks = self._load(last)
        return MarksDraft(name, self._marks, self._position_of)

    def keep(self, draft: MarksDraft, position: int) -> None:
        """The group is durable up to this position. Raises nothing: the log has it all."""
        draft.keep(position)
        if position - self._saved >= SAVE_EVERY:
            try:
                self.save(position)
            except StoreUnavailable as error:
                _log.warning("marks not saved", channel=self._channel, why=error.message)

    def save(self, position: int) -> None:
        """Saves what changed, together with the position it is true for."""
        marks = self._marks
        if marks is None:
            return
        changes: list[Change] = [
            Put(MARKS_TABLE, self._key(publisher), msgspec.msgpack.encode(marks.of(publisher)))
            for publisher in sorted(marks.changed)
        ]
        changes += [
            Delete(MARKS_TABLE, self._key(publisher)) for publisher in sorted(marks.forgotten)
        ]
        changes.append(Put(SAVED_TABLE, self._channel, str(position).encode()))
        self._records.apply(changes)
        marks.changed.clear()
        marks.forgotten.clear()
        self._saved = position

    def _key(self, publisher: str) -> str:
        return f"{self._channel}/{publisher}"

    def _load(self, last: int) -> Marks:
        marks = Marks()
        saved = self._records.get(SAVED_TABLE, self._channel)
        position = int(saved) if saved is not None and saved.isdigit() else 0
        if position > last:  # the log was put back to an older state; the marks go with it
            marks.forgotten.update(publisher for publisher, _marks in self._read_saved())
            position = 0
        else:
            marks.restore(self._read_saved())
        self._saved = position
        while position < last:
            blocks = self._log.read_after(self._channel, position, max_records=_READ_RECORDS)
            for block in blocks:
                self._take_in(marks, block.first, block.body)
            position = blocks[-1].last if blocks else last
        return marks

    def _read_saved(self) -> Iterator[tuple[str, PublisherMarks]]:
        prefix, after = self._key(""), ""
        while found := self._records.find(MARKS_TABLE, prefix=prefix, after=after):
            for key, value in found:
                yield key.removeprefix(prefix), msgspec.msgpack.decode(value, type=PublisherMarks)
            after = found[-1][0]

    def _take_in(self, marks: Marks, first: int, body: bytes) -> None:
        try:
            events = decode_block(body)
        except Corrupt as error:
            _log.warning(
                "block unreadable", channel=self._channel, position=first, why=error.message
            )
            return
        for position, event in enumerate(events, start=first):
            stamp = stamp_in(self._channel, event)
            if stamp is not None:
                marks.raise_to(stamp, position)
