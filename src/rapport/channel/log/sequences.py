"""Repetitions recognised by number: the highest sequence per publisher and epoch. Pure. [CH-6]

A publisher that numbers its events sends them in order, so everything up to its mark has been
stored, however long ago. Three CloudEvents attributes carry the number; the endpoint that accepted
the event adds the channel they count for, because a copy in another channel is no repetition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from rapport.core.codec import TRUSTED_BATCHES, decode_block, have_no_headers
from rapport.core.errors import Corrupt, InvalidInput, StoreUnavailable
from rapport.core.event import MAX_NAME, Event
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    Change,
    Delete,
    LogStore,
    Put,
    RecordStore,
    all_blocks,
    all_records,
)

_log = get_logger(__name__)

PUBLISHER = "publisher"
"""Attribute: the publisher that numbers; unique among all publishers of the channel."""
EPOCH = "epoch"
"""Attribute: which count of this publisher; a new one begins when the old may have been lost."""
SEQUENCE = "sequence"
"""Attribute: the number within the epoch, growing, gaps allowed."""
SEQUENCED_IN = "sequencedin"
"""Header: the channel that the numbers count for; set by the endpoint, never by the publisher."""

HOPS = "hops"
"""Header: the nodes a copy has passed; set by nodes (see federation/hops.py)."""
_SET_BY_NODES = frozenset((SEQUENCED_IN, HOPS))

MOST_PUBLISHERS = 100_000
"""Publishers remembered per channel; the least recently active is forgotten first."""
MOST_EPOCHS = 16
"""Epochs remembered per publisher; the one used longest ago is forgotten first."""
_MOST_DIGITS = 18
MARKS_TABLE, SAVED_TABLE = "sequence_marks", "sequences_saved"
SAVE_EVERY = 100_000
"""Positions between two saves; bounds what the first append after a start has to read."""
_READ_RECORDS = 50_000
_MARKER = SEQUENCED_IN.encode()

Locate = Callable[[Event], int]
"""Returns the position of an event stored long ago; 0 when unknown."""


class SequenceStamp(msgspec.Struct, frozen=True, gc=False):
    """An event's number in its publisher's sequence."""

    publisher: str
    epoch: int
    sequence: int


def read_stamp(event: Event) -> SequenceStamp | None:
    """The event's stamp; None unless all three attributes are there.

    Raises InvalidInput when they are there and mean nothing.
    """
    headers = event.headers
    if PUBLISHER not in headers or EPOCH not in headers or SEQUENCE not in headers:
        return None
    epoch, sequence = _number(headers[EPOCH]), _number(headers[SEQUENCE])
    publisher = headers[PUBLISHER]
    if epoch is None or sequence is None or not 0 < len(publisher) <= MAX_NAME:
        raise InvalidInput(
            f"the event {event.id!r} has a publisher, an epoch and a sequence that cannot be read",
            code="event.bad_sequence",
            hint=f"epoch and sequence are whole numbers of at most {_MOST_DIGITS} digits, "
            f"publisher has 1 to {MAX_NAME} characters",
        )
    return SequenceStamp(publisher, epoch, sequence)


def counted_in(channel: str, events: Sequence[Event]) -> Sequence[Event]:
    """The events as an endpoint passes them on: numbered ones marked as counting for this channel.

    Raises InvalidInput for an unreadable stamp. A mark from outside is dropped. Events without
    headers are returned unchanged.
    """
    if have_no_headers(events):
        return events
    return [_counted(channel, event) if event.headers else event for event in events]


def stamp_in(channel: str, event: Event) -> SequenceStamp | None:
    """The stamp if it counts in this channel; raises nothing."""
    if event.headers.get(SEQUENCED_IN) != channel:
        return None
    try:
        return read_stamp(event)
    except InvalidInput:
        return None  # endpoints reject these; those in the log are deduplicated by id


def _counted(channel: str, event: Event) -> Event:
    headers = {name: text for name, text in event.headers.items() if name not in _SET_BY_NODES}
    if read_stamp(event) is not None:
        headers[SEQUENCED_IN] = channel
    return event if headers == event.headers else msgspec.structs.replace(event, headers=headers)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


class PublisherMarks(msgspec.Struct):
    """The highest sequence per epoch of one publisher, and the position of its newest event."""

    position: int = 0
    epochs: dict[int, int] = {}


class SequenceMarks:
    """All marks of a channel, in memory: at most 16 epochs of at most 100,000 publishers.

    `changed` and `forgotten` name publishers since they were last cleared, for saving.
    """

    def __init__(
        self, *, most_publishers: int = MOST_PUBLISHERS, most_epochs: int = MOST_EPOCHS
    ) -> None:
        self._most_publishers, self._most_epochs = most_publishers, most_epochs
        self._by_publisher: OrderedDict[str, PublisherMarks] = OrderedDict()
        self.changed: set[str] = set()
        self.forgotten: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_publisher)

    def highest(self, publisher: str, epoch: int) -> int:
        """The mark; -1 for an unknown epoch."""
        marks = self._by_publisher.get(publisher)
        return -1 if marks is None else marks.epochs.get(epoch, -1)

    def of(self, publisher: str) -> PublisherMarks:
        return self._by_publisher.get(publisher) or PublisherMarks()

    def raise_to(self, stamp: SequenceStamp, position: int) -> None:
        """Records an event that is durable at a position; a lower sequence changes no mark."""
        marks = self._by_publisher.setdefault(stamp.publisher, PublisherMarks())
        self._by_publisher.move_to_end(stamp.publisher)
        marks.position = max(marks.position, position)
        highest = max(marks.epochs.pop(stamp.epoch, -1), stamp.sequence)
        marks.epochs[stamp.epoch] = highest  # reinserted: the newest is last
        while len(marks.epochs) > self._most_epochs:
            del marks.epochs[next(iter(marks.epochs))]
        self.changed.add(stamp.publisher)
        self.forgotten.discard(stamp.publisher)
        self._forget()

    def restore(self, saved: Iterable[tuple[str, PublisherMarks]]) -> None:
        """Starts with saved marks, least recently used first."""
        for publisher, marks in sorted(saved, key=lambda pair: pair[1].position):
            self._by_publisher[publisher] = marks
        self._forget()

    def _forget(self) -> None:
        while len(self._by_publisher) > self._most_publishers:
            publisher, _marks = self._by_publisher.popitem(last=False)
            self.changed.discard(publisher)
            self.forgotten.add(publisher)


class MarksDraft:
    """Marks as they will be when a group of appends is durable; `marks` itself is not touched."""

    def __init__(self, channel: str, marks: SequenceMarks, position_of: Locate) -> None:
        self._channel, self._marks = channel, marks
        self.position_of = position_of
        """Finds the first copy of an old event; 0 when unknown."""
        self._raised: dict[tuple[str, int], int] = {}

    def is_old(self, event: Event) -> bool:
        """Whether the event's number has been passed; a higher one passes it for the next.

        The newest number of the group itself is not old: an interceptor may have made several
        events of one, all with its number. They differ in their ids and are durable together.
        """
        stamp = stamp_in(self._channel, event)
        if stamp is None:
            return False
        key = (stamp.publisher, stamp.epoch)
        raised = self._raised.get(key)
        if raised is not None and stamp.sequence <= raised:
            return stamp.sequence < raised
        if raised is None and stamp.sequence <= self._marks.highest(*key):
            return True
        self._raised[key] = stamp.sequence
        return False

    def keep(self, position: int) -> None:
        """The group is durable up to this position."""
        for (publisher, epoch), sequence in self._raised.items():
            self._marks.raise_to(SequenceStamp(publisher, epoch, sequence), position)


class SequenceStore:
    """The sequence marks of one channel; every call comes from the writing thread.

    A channel without numbered events costs one look at the headers of each event, and a small
    record every 100,000 positions.
    """

    def __init__(
        self, channel: str, log: LogStore, records: RecordStore, position_of: Locate
    ) -> None:
        self._channel, self._log, self._records = channel, log, records
        self._position_of = position_of
        self._marks: SequenceMarks | None = None
        self._save_at = 0

    def draft(self, appends: Sequence[Sequence[Event]], last: int) -> MarksDraft | None:
        """The draft that decides about numbered events of a group; None without any. The log ends
        at `last`. Loads the marks on first use; raises StoreUnavailable.
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
        """Saves all marks as of `last`, so that repetitions of trimmed events are recognised after
        a restart. Raises StoreUnavailable.
        """
        if self._marks is None:
            self._marks = self._load(last)
        self._save(self._marks, last)
        self._save_at = last + SAVE_EVERY

    def take_in(self, first: int, body: bytes) -> None:
        """A block that another process appended; not needed before the marks are loaded."""
        if self._marks is not None:
            self._take_in(self._marks, first, body)

    def _save_if_possible(self, marks: SequenceMarks, position: int) -> None:
        """Raises nothing: the log has it all, and the next time may go better."""
        self._save_at = position + SAVE_EVERY
        try:
            self._save(marks, position)
        except StoreUnavailable as error:
            _log.warning("marks not saved", channel=self._channel, why=error.message)

    def _save(self, marks: SequenceMarks, position: int) -> None:
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

    def _load(self, last: int) -> SequenceMarks:
        marks = SequenceMarks()
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
        for block in all_blocks(
            self._log, self._channel, position, last=last, max_records=_READ_RECORDS
        ):
            self._take_in(marks, block.first, block.body)
        return marks

    def _read_saved(self) -> Iterator[tuple[str, PublisherMarks]]:
        prefix = self._key("")
        for key, value in all_records(self._records, MARKS_TABLE, prefix=prefix):
            yield key.removeprefix(prefix), msgspec.msgpack.decode(value, type=PublisherMarks)

    def _take_in(self, marks: SequenceMarks, first: int, body: bytes) -> None:
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
