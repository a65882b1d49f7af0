"""Knowledge that is larger than a medium takes, cut into parts. [EN-4]"""

from __future__ import annotations

import zlib

from rapport.ensemble.codec import MAX_PARTS, decode, encode
from rapport.ensemble.messages import Part, Published

_REMEMBERED = 8
_HEADER_BYTES = 48
"""What a part's numbers and tag take in msgpack beside the component's name, with room to spare."""
_LEAST_BYTES = 16


class Splitter:
    """Cuts messages, and remembers the last few, as one is often sent to several.

    Whoever has the same `part_bytes` cuts a message into the very same parts, so that parts of it
    from different nodes fit together.
    """

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._cut: dict[tuple[str, int], tuple[Published, tuple[Part, ...]]] = {}

    def parts_of(self, message: Published) -> tuple[Part, ...]:
        """The message in parts, in order; raises InvalidInput when it is larger than any may be."""
        key = (message.component, message.version)
        found = self._cut.get(key)
        if found is not None and found[0] is message:
            return found[1]
        if len(self._cut) >= _REMEMBERED:
            del self._cut[next(iter(self._cut))]
        parts = _cut(message, self._part_bytes)
        self._cut[key] = (message, parts)
        return parts


def join(parts: list[bytes], checksum: int) -> Published | None:
    """The message that was cut into these; none when they do not make the one it was, raises
    InvalidInput when it is none at all.
    """
    whole = b"".join(parts)
    if zlib.crc32(whole) != checksum:
        return None
    message = decode(whole)
    return message if isinstance(message, Published) else None


def _cut(message: Published, part_bytes: int) -> tuple[Part, ...]:
    whole = encode(message)
    room = part_bytes - _HEADER_BYTES - len(message.component.encode())
    room = max(room, _LEAST_BYTES, -(-len(whole) // MAX_PARTS))
    count, checksum = -(-len(whole) // room), zlib.crc32(whole)
    return tuple(
        Part(
            message.component,
            message.version,
            index,
            count,
            checksum,
            whole[index * room : (index + 1) * room],
        )
        for index in range(count)
    )
