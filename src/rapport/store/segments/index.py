"""Where frames stand in one segment file, and the rule that finds whole groups. Pure. [CH-13]"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from zlib import crc32

import msgspec

from rapport.store.segments.scanning import Damage, Frame

_SPACING_BYTES = 64 * 1024
_MAGIC = b"RPI1"


class Hole(msgspec.Struct, frozen=True, array_like=True):
    """Bytes `offset` .. `end` of a segment that should be frames and are not; positions 0 when
    unknown.
    """

    offset: int
    end: int
    first: int
    count: int


class _Saved(msgspec.Struct, array_like=True):
    offsets: list[int]
    firsts: list[int]
    end: int
    last: int
    holes: list[Hole]


class SegmentIndex:
    """One entry per 64 KiB: offset and first position of a frame; `end` and `last` of what is whole
    and durable.

    16 bytes per entry, so a full segment of 64 MiB costs 16 KiB. Everything in it can be had again
    by a scan.
    """

    def __init__(self, first: int) -> None:
        self._offsets, self._firsts = array("Q"), array("Q")
        self.end = 0
        self.last = first - 1
        self.holes: list[Hole] = []

    def add(self, frame: Frame) -> None:
        """Takes in the next frame; it must stand behind all others."""
        self.end = frame.offset
        self.extend(frame.header.first, frame.header.last, frame.header.frame_bytes)

    def extend(self, first: int, last: int, frame_bytes: int) -> None:
        """Takes in a frame that stands right behind what is known."""
        if not self._offsets or self.end - self._offsets[-1] >= _SPACING_BYTES:
            self._offsets.append(self.end)
            self._firsts.append(first)
        self.end += frame_bytes
        self.last = last

    def locate(self, position: int) -> int:
        """Offset of a frame at or before the one that holds `position`; 0 if none is nearer."""
        nearest = bisect_right(self._firsts, position) - 1
        return self._offsets[nearest] if nearest >= 0 else 0

    def encode(self) -> bytes:
        """The form kept beside the segment."""
        saved = _Saved(list(self._offsets), list(self._firsts), self.end, self.last, self.holes)
        body = msgspec.msgpack.encode(saved)
        return _MAGIC + crc32(body).to_bytes(4, "little") + body

    @staticmethod
    def decode(raw: bytes, first: int) -> SegmentIndex | None:
        """The index again; None when the bytes are not one (it is then rebuilt)."""
        checksum, body = raw[4:8], raw[8:]
        if raw[:4] != _MAGIC or crc32(body).to_bytes(4, "little") != checksum:
            return None
        try:
            saved = msgspec.msgpack.decode(body, type=_Saved)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None
        index = SegmentIndex(first)
        index._offsets.extend(saved.offsets)
        index._firsts.extend(saved.firsts)
        index.end, index.last, index.holes = saved.end, saved.last, saved.holes
        return index


class GroupWalk:
    """Turns scanned frames into whole groups: a state machine without I/O.

    A group is synced before the next is begun. So damage followed by the beginning of another group
    happened to durable data and is a hole to report; damage followed by nothing is a write cut
    short, which nobody was told of.
    """

    def __init__(self, index: SegmentIndex, *, until: int | None = None) -> None:
        self.index = index
        self._until = until
        self._frames: list[Frame] = []
        self._damage: list[Damage] = []

    def take_all(self, found: Iterable[Frame | Damage]) -> None:
        """Takes in everything a scan from `index.end` found."""
        for item in found:
            if isinstance(item, Damage):
                self._damage.append(item)
            elif self._until is not None and item.header.first >= self._until:
                return
            elif item.header.first <= self._last():
                self._damage.append(Damage(item.offset, item.end, item.header))
            else:
                self._take(item)

    def end_of_closed(self) -> None:
        """The segment was closed, so everything in it was synced: what is not sound is a hole, not
        a torn write.

        Damage behind the last position is what a failed append left there, and no loss.
        """
        if self._until is None or self.index.last >= self._until - 1:
            return
        if not self.unfinished:
            missing = self._until - 1 - self.index.last
            self.index.holes.append(
                Hole(self.index.end, self.index.end, self.index.last + 1, missing)
            )
        self._commit()
        self.index.last = self._until - 1

    @property
    def unfinished(self) -> bool:
        """Whether bytes after `index.end` belong to no whole group."""
        return bool(self._frames or self._damage)

    def _last(self) -> int:
        return self._frames[-1].header.last if self._frames else self.index.last

    def _take(self, frame: Frame) -> None:
        begins = frame.header.index == 0
        if begins and (self._frames or self._damage):
            self._commit()
        elif begins and frame.header.first > self.index.last + 1:
            missing = frame.header.first - self.index.last - 1
            self.index.holes.append(Hole(frame.offset, frame.offset, self.index.last + 1, missing))
        elif not begins and not self._frames and not self._damage:
            # The group's beginning is missing without a trace; it cannot be called whole.
            self._damage.append(Damage(frame.offset, frame.offset, None))
        self._frames.append(frame)
        if frame.header.remaining == 0 and not self._damage:
            self._commit()

    def _commit(self) -> None:
        """All frames taken are durable; what lies between them or before them is a hole."""
        for frame in self._frames:
            self.index.add(frame)
        for damage in self._damage:
            self.index.holes.append(_hole(damage))
            self.index.end = max(self.index.end, damage.end)
        self._frames, self._damage = [], []


def _hole(damage: Damage) -> Hole:
    if damage.header is None:
        return Hole(damage.offset, damage.end, 0, 0)
    return Hole(damage.offset, damage.end, damage.header.first, damage.header.count)
