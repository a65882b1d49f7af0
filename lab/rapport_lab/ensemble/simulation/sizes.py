"""How many bytes a message takes on a simulated medium. [EN-11]"""

from __future__ import annotations

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.protocol import Message, Published, encode


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of messages. Knowledge whose body is bytes counts as it is, with any other body as
    `knowledge_bytes`; all else as the codec writes it.

    The time on air follows from them, so they decide when the radio is full.
    """

    knowledge_bytes: int = 256
    """The values of an actor: position, destination, seats, and the positions of some others."""
    frame_bytes: int = 16
    """What names, roles and times take beside the values."""

    def __post_init__(self) -> None:
        if min(self.knowledge_bytes, self.frame_bytes) < 0:
            raise InvalidInput(
                f"nothing has these sizes: {self}", code="ensemble.bad_sizes", hint="0 or more"
            )

    def size_of(self, message: Message) -> int:
        """The bytes of a message: at once for knowledge, some microseconds for all else."""
        if type(message) is Published:
            body = message.body
            return self.frame_bytes + (len(body) if type(body) is bytes else self.knowledge_bytes)
        return len(encode(message))
