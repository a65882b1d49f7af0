"""Blocks as messages of a JetStream stream: names, groups, parts of groups. Pure. [CH-13]

One append writes one group: a single message, or several parts when it is larger than the server
accepts; the last part commits it. The parts of a group are neighbours, because each names the
sequence it follows. A group that another writer interrupted is never finished, and readers skip it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote_to_bytes

import msgspec

from rapport.core.errors import Corrupt, InvalidInput
from rapport.store.base import Block

GROUP_HEADER = "Rapport-Group"
_PREFIX = re.compile(r"[A-Za-z0-9-]{1,40}\Z")
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_LONGEST_TOKEN = 200
_Body = list[tuple[int, int, bytes]]
"""Count, time received and body of each block."""
_BODY = msgspec.msgpack.Decoder(_Body)


# --- names ----------------------------------------------------------------------------------------


def check_prefix(prefix: str) -> None:
    """Raises InvalidInput unless streams can be named with this prefix."""
    if not _PREFIX.match(prefix):
        raise InvalidInput(
            f"{prefix[:60]!r} cannot be the prefix of streams",
            code="store.bad_prefix",
            hint="1 to 40 letters, digits and '-'",
        )


def encode_token(log: str) -> str:
    """A log's name as a part of a subject and of a stream name.

    >>> encode_token("raw.readers"), encode_token("ü/x")
    ('raw~readers', '=C3=BC=2Fx')
    """
    raw = log.encode("utf-8", "surrogatepass")
    token = "".join(
        "~" if byte == ord(".") else chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in raw
    )
    if not 0 < len(token) <= _LONGEST_TOKEN:
        raise InvalidInput(
            f"{log[:60]!r} cannot be the name of a stream",
            code="log.bad_name",
            hint=f"1 to {_LONGEST_TOKEN} characters; those beside a-z, 0-9, '.', '_', '-' count "
            "three times",
        )
    return token


def decode_token(token: str) -> str:
    return unquote_to_bytes(token.replace("=", "%").replace("~", ".")).decode("utf-8", "replace")


# --- groups ---------------------------------------------------------------------------------------


class GroupMark(msgspec.Struct, frozen=True, gc=False):
    """The header of a message: the records of its group, and the number of this part.

    `count` 0 with `first` = n means that the stream has no records before n.
    """

    first: int
    count: int
    received: int
    """Of its first block."""
    part: int
    parts: int
    write: str
    """Writer and attempt, different for every group."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def is_final(self) -> bool:
        """Whether this part commits the group."""
        return self.part == self.parts - 1

    def header(self) -> str:
        numbers = (self.first, self.count, self.received, self.part, self.parts)
        return f"{' '.join(map(str, numbers))} {self.write}"


def read_mark(headers: Mapping[str, str] | None) -> GroupMark:
    """The mark of a message; raises Corrupt for a message that is not Rapport's."""
    value = (headers or {}).get(GROUP_HEADER, "")
    numbers, _, write = value.rpartition(" ")
    try:
        first, count, received, part, parts = map(int, numbers.split(" "))
    except ValueError:
        raise _foreign(value) from None
    if first < 1 or count < 0 or not 0 <= part < parts:
        raise _foreign(value)
    return GroupMark(first, count, received, part, parts, write)


def _foreign(value: str) -> Corrupt:
    return Corrupt(
        f"a message of the stream was not written by Rapport ({GROUP_HEADER}: {value[:80]!r})",
        code="log.foreign_message",
        hint="nobody but Rapport may publish to the subjects below its prefix",
    )


def encode_group(
    blocks: Sequence[Block], mark: GroupMark, part_bytes: int
) -> list[tuple[GroupMark, bytes]]:
    """The messages of the blocks, each with its mark; `mark` is that of the whole group."""
    body = msgspec.msgpack.encode([(one.count, one.received, one.body) for one in blocks])
    pieces = [body[at : at + part_bytes] for at in range(0, len(body), part_bytes)]
    return [
        (msgspec.structs.replace(mark, part=part, parts=len(pieces)), piece)
        for part, piece in enumerate(pieces)
    ]


class GroupAssembler:
    """Assembles whole groups from messages in the order of the stream; skips unfinished ones."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._write, self._sequence = "", 0
        self.began = 0
        """Sequence of the first part of the last group that was returned."""

    def add(self, sequence: int, mark: GroupMark, data: bytes) -> list[Block] | None:
        """The blocks of the group that this message completes; None when it completes none.

        Raises Corrupt when the group cannot be read.
        """
        follows = mark.write == self._write and sequence == self._sequence + 1
        if mark.part == 0:
            self._pieces, self._write, self.began = [], mark.write, sequence
        elif not follows or mark.part != len(self._pieces):
            self._pieces, self._write = [], ""
            return None
        self._pieces.append(data)
        self._sequence = sequence
        if not mark.is_final:
            return None
        pieces, self._pieces, self._write = self._pieces, [], ""
        return _decode(mark, pieces)


def _decode(mark: GroupMark, pieces: list[bytes]) -> list[Block]:
    if mark.count == 0:
        return []
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    try:
        blocks = _BODY.decode(body)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"records {mark.first} to {mark.last} of the stream cannot be read: {error}",
            code="log.damaged",
        ) from None
    placed, first = [], mark.first
    for count, received, content in blocks:
        placed.append(Block(first, count, received, content))
        first += count
    return placed
