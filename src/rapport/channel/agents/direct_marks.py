"""What a direct sink remembers: marks on disk, ids of uncounted events in memory. [CH-8, CH-6]"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rapport.channel.sequences.numbers import SEQUENCED_IN, Marks, MarksDraft, PublisherMarks
from rapport.core.errors import Corrupt
from rapport.core.event import Event
from rapport.store.base import Block
from rapport.store.segment_store import SegmentLogStore

_LOG = "marks"
_SEGMENT_BYTES = 1024 * 1024
_MOST_IDS = 100_000


class SavedMarks:
    """Marks in a log of their own: each save appends what changed; now and then all of it, so that
    the older part can go. Belongs to one process; raises StoreUnavailable.
    """

    def __init__(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._store = SegmentLogStore(directory, segment_bytes=_SEGMENT_BYTES)
        self.marks = Marks()
        self._ids: dict[tuple[str, str], None] = {}
        self._known: set[str] = set()
        self._written = self._whole_at = 0
        saved: dict[str, PublisherMarks] = {}
        for block in self._read():
            saved.update(_decode(block))
            self._written += len(block.body)
        self.marks.restore(saved.items())
        self._known = set(saved)

    def unseen(self, events: Sequence[Event], draft: MarksDraft) -> list[bool]:
        """For each event whether it is new, also within the request."""
        found = []
        within: set[tuple[str, str]] = set()
        for event in events:
            identity = (event.source, event.id)
            repeated = draft.is_old(event) or identity in self._ids or identity in within
            within.add(identity)
            found.append(not repeated)
        return found

    def save(self, events: Sequence[Event]) -> None:
        """Remembers that the events were handled; durable for numbered ones when it returns."""
        for event in events:
            if SEQUENCED_IN not in event.headers:
                self._ids[event.source, event.id] = None
        while len(self._ids) > _MOST_IDS:
            del self._ids[next(iter(self._ids))]
        if not self.marks.changed:
            return
        self._known = (self._known | self.marks.changed) - self.marks.forgotten
        whole = self._written - self._whole_at >= _SEGMENT_BYTES
        publishers = self._known if whole else self.marks.changed
        body = msgspec.msgpack.encode({name: self.marks.of(name) for name in sorted(publishers)})
        (block,) = self._store.append(_LOG, [(1, body)], 0)
        self._written += len(body)
        self.marks.changed.clear()
        self.marks.forgotten.clear()
        if whole:
            self._whole_at = self._written
            self._store.trim(_LOG, block.first)

    def close(self) -> None:
        """Gives the directory back; a second call is no error."""
        self._store.close()

    def _read(self) -> list[Block]:
        blocks: list[Block] = []
        position = 0
        while found := self._store.read_after(_LOG, position):
            blocks += found
            position = found[-1].last
        return blocks


def _decode(block: Block) -> dict[str, PublisherMarks]:
    try:
        return msgspec.msgpack.decode(block.body, type=dict[str, PublisherMarks])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"saved marks cannot be read: {error}", code="sink.bad_marks") from None
