"""Headers of events that their publisher numbers."""

from __future__ import annotations

from rapport.channel.log.sequences import EPOCH, PUBLISHER, SEQUENCE, SequenceStamp


def stamped(headers: dict[str, str], stamp: SequenceStamp) -> dict[str, str]:
    """The headers with the three attributes of a stamp."""
    return {
        **headers,
        PUBLISHER: stamp.publisher,
        EPOCH: str(stamp.epoch),
        SEQUENCE: str(stamp.sequence),
    }
