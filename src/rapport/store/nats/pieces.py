"""What a stream can let go of at once: runs of messages, told by their first and last. [CH-14]"""

from __future__ import annotations

from rapport.store.base import LogPiece
from rapport.store.nats.stream import NatsStream

MOST_MESSAGES = 256
"""Messages of one piece: few enough for fine retention, many enough to be asked for quickly."""


async def pieces_of(log: NatsStream, limit: int) -> list[LogPiece]:
    """The oldest pieces, in order; two questions for each. The bytes are the stream's, shared out
    evenly.
    """
    pieces: list[LogPiece] = []
    tail = await log.refresh()
    if tail is None:
        return pieces
    message_bytes = await log.size() // max(tail.sequence - log.first_sequence + 1, 1)
    sequence = log.first_sequence
    while sequence <= tail.committed and len(pieces) < limit:
        began = await log.mark_from(sequence)
        if began is None:
            break
        mark = began[1]
        until, after = await _following(log, sequence, tail.committed, tail.position)
        newest = await log.mark_from(until - 1)
        received = newest[1].received if newest else mark.received
        if after > mark.first:
            size = (until - sequence) * message_bytes
            # A message without records only says where the log begins or ends.
            oldest = mark.received if mark.count else received
            pieces.append(LogPiece(mark.first, after - 1, size, oldest, max(received, oldest)))
        sequence = until
    return pieces


async def _following(
    log: NatsStream, sequence: int, committed: int, position: int
) -> tuple[int, int]:
    """Sequence and position at which the piece after the one at `sequence` begins."""
    wanted = sequence + MOST_MESSAGES
    while wanted <= committed:
        found = await log.mark_from(wanted)
        if found is None:
            break
        at, mark = found
        if at - mark.part > sequence:
            return at - mark.part, mark.first
        wanted = at - mark.part + mark.parts  # one group is larger than a piece
    return committed + 1, position + 1
