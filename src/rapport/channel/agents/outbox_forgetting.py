"""Rejected events that nobody needs any more leave the outbox. [CH-5]

Noted durably first; the bytes go when every rejected event is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from rapport.channel.agents.outbox import open_outbox_store
from rapport.channel.agents.outbox_reading import FORGOTTEN, REJECTED, read_rejected
from rapport.core.errors import UnknownName
from rapport.kernel.clock import Clock


def forget_rejected(
    directory: Path, clock: Clock, sequences: Collection[int] | None = None
) -> list[int]:
    """Forgets rejected events by their numbers, or all of them; the numbers forgotten.

    Raises UnknownName (no outbox, no such rejected event), StoreUnavailable when another process
    holds the outbox.
    """
    if not directory.is_dir():
        raise UnknownName("outbox", str(directory), code="outbox.unknown")
    store = open_outbox_store(directory)
    try:
        held = [one.sequence for one in read_rejected(store)]
        chosen = held if sequences is None else sorted(set(sequences))
        for sequence in chosen:
            if sequence not in held:
                raise UnknownName("rejected event", str(sequence), [str(number) for number in held])
        if chosen:
            store.append(FORGOTTEN, [(1, msgspec.msgpack.encode(chosen))], clock.now_ms())
        if chosen and len(chosen) == len(held):
            # The events before the notes: a crash in between leaves notes that name nothing.
            for log in (REJECTED, FORGOTTEN):
                store.close_piece(log)
                store.trim(log, store.last_position(log) + 1)
        return chosen
    finally:
        store.close()
