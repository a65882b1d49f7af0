"""The marks of publishers on disk: saved now and then, completed from the log. [CH-6]

The events in the log carry their numbers, so the log alone is enough. The saved marks only keep the
first append after a start from reading all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rapport.channel.logged.shared import Parts
from rapport.channel.sequences.numbers import (
    SEQUENCED_IN,
    Locate,
    Marks,
    MarksDraft,
    PublisherMarks,
    stamp_in,
)
from rapport.core.codec import TRUSTED_BATCHES, decode_block, have_no_headers
from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Change, Delete, Put

_log = get_logger(__name__)

MARKS_TABLE, SAVED_TABLE = "sequence_marks", "sequences_saved"
SAVE_EVERY = 100_000
"""Positions between two savings: what the first append after a start reads at most."""
_READ_RECORDS = 50_000
_MARKER = SEQUENCED_IN.encode()


class SequenceKeeping:
    """The marks of one channel; every call comes from the writing thread.

    A channel without numbered events pays one look at the headers of each event, and a small record
    every 100,000 positions.
    """

    def __init__(self, channel: str, parts: Parts, position_of: Locate) -> None:
        self._channel, self._log, self._records = channel, parts.log, parts.records
        self._position_of = position_of
        self._marks: Marks | None = None
        self._save_at = 0

    def draft(self, appends: Sequence[Sequence[Event]], last: int) -> MarksDraft | None:
        """What decides about the numbered events of a group; None when there are none.

        The log ends at `last`. Loads the marks when first asked; raises StoreUnavailable when it
        cannot.
        """
        name = self._channel
        if self._marks is None:
            self._marks = self._load(last)
        elif last >= self._save_at:
            self._save_if_possible(self._marks, last)
        if any(
            event.headers and event.headers.get(SEQUENCED_IN) == name
            for append in appends
            for event in (
                () if type(append) in TRUSTED_BATCHES or have_no_headers(append) else append
            )
        ):
            return MarksDraft(name, self._marks, self._position_of)
        return None

    def save(self, last: int) -> None:
        """Saves all marks, true for `last`: what the log lets go of is still recognised after a
        restart. Raises StoreUnavailable.
        """
        if self._marks is None:
            self._marks = self._load(last)
        self._save(self._marks, last)
        self._save_at = last + SAVE_EVERY

    def take_in(self, first: int, body: bytes) -> None:
        """A block that another process appended; not needed before the marks are loaded."""
        if self._marks is not None:
            self._take_in(self._marks, first, body)

    def _save_if_possible(self, marks: Marks, position: int) -> None:
        """Raises nothing: the log has it all, and the next time may go better."""
        self._save_at = position + SAVE_EVERY
        try:
            self._save(marks, position)
        except StoreUnavailable as error:
            _log.warning("marks not saved", channel=self._channel, why=error.message)

    def _save(self, marks: Marks, position: int) -> None:
        """Saves what changed, together with the position it is true for."""
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

    def _key(self, publisher: str) -> str:
        return f"{self._channel}/{publisher}"

    def _load(self, last: int) -> Marks:
        marks = Marks()
        saved = self._records.get(SAVED_TABLE, self._channel)
        position = int(saved) if saved is not None and saved.isdigit() else 0
        if position > last and position > self._log.last_position(self._channel):
            # The log was put back to an older state; the marks go with it. (It is longer than we
            # know when another process that shares the records appended meanwhile.)
            marks.forgotten.update(publisher for publisher, _marks in self._read_saved())
            position = 0
        else:
            marks.restore(self._read_saved())
        self._save_at = position + SAVE_EVERY
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
        if _MARKER not in body:
            return  # most blocks of most channels; looking is a hundred times cheaper than decoding
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
