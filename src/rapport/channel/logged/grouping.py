"""Many appends made into one write: which events are new, and where they go. Pure. [CH-6]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from rapport.channel.channel import Appended
from rapport.channel.logged.seen import Keys, are_all_different, identity_keys
from rapport.core.codec import encode_block
from rapport.core.encoded_batch import EncodedBatch
from rapport.core.event import Event

BLOCK_EVENTS = 1024
BLOCK_BYTES = 4 * 1024 * 1024
"""Of data; headers may make a block twice as large."""

Find = Callable[[Keys], Mapping[int, int]]
"""Of the keys that may have been seen, each by its number among these: the position."""
IsSame = Callable[[Event, int], bool]
"""Whether the event at a position is the same as this one."""


class Numbered(Protocol):
    """What is known of events that their publishers count."""

    def is_old(self, event: Event) -> bool:
        """Whether its number has been passed; to be asked once per event, in order."""

    def position_of(self, event: Event) -> int:
        """Where the first copy of an old one stands; 0 when that is no longer known."""


class Group(msgspec.Struct):
    """What a set of appends comes to: new events with their keys, and an answer for each append."""

    fresh: list[Sequence[Event]]
    """In runs: packed events stay packed."""
    keys: Keys
    answers: list[Appended]


def plan_group(
    appends: Sequence[Sequence[Event]],
    next_position: int,
    find: Find,
    is_same: IsSame,
    numbered: Numbered | None = None,
) -> Group:
    """Decides which events are new. A repetition gets the position of its first copy, also within
    the group. `numbered` is asked too when some of the events are counted by their publisher.
    """
    runs = _runs(appends)
    keys = _keys(runs)
    suspected = find(keys)
    if numbered is None and not suspected and are_all_different(keys):
        return Group(_merged(runs), keys, _consecutive(appends, next_position))
    return _plan_with_repetitions(appends, keys, suspected, next_position, is_same, numbered)


def _runs(appends: Sequence[Sequence[Event]]) -> list[Sequence[Event]]:
    """The events of all appends, in order; those that are not packed in rows of their own."""
    runs: list[Sequence[Event]] = []
    row: list[Event] = []
    for append in appends:
        if not isinstance(append, EncodedBatch):
            row += append
        elif append:
            if row:
                runs.append(row)
                row = []
            runs.append(append)
    return [*runs, row] if row else runs


def _merged(runs: list[Sequence[Event]]) -> list[Sequence[Event]]:
    """The same with packed neighbours joined: many small appends at once are not many small
    blocks.
    """
    found: list[Sequence[Event]] = []
    packs: list[EncodedBatch] = []
    for run in runs:
        packed = run if isinstance(run, EncodedBatch) else None
        if packs and (packed is None or packed.width != packs[0].width):
            found.append(EncodedBatch.joined(packs))
            packs = []
        if packed is None:
            found.append(run)
        else:
            packs.append(packed)
    return [*found, EncodedBatch.joined(packs)] if packs else found


def _keys(runs: Sequence[Sequence[Event]]) -> Keys:
    found = [identity_keys(run) for run in runs]
    return found[0] if len(found) == 1 else np.concatenate(found or [identity_keys(())])


def _consecutive(appends: Sequence[Sequence[Event]], next_position: int) -> list[Appended]:
    answers = []
    for append in appends:
        answers.append(Appended(tuple(range(next_position, next_position + len(append))), 0))
        next_position += len(append)
    return answers


def _plan_with_repetitions(
    appends: Sequence[Sequence[Event]],
    keys: Keys,
    suspected: Mapping[int, int],
    next_position: int,
    is_same: IsSame,
    numbered: Numbered | None,
) -> Group:
    fresh: list[Event] = []
    chosen: list[int] = []
    answers: list[Appended] = []
    placed: dict[tuple[str, str], int] = {}
    number = 0
    for append in appends:
        positions, duplicates = [], 0
        for event in append:
            identity = (event.source, event.id)
            position = placed.get(identity, 0)
            before = suspected.get(number, 0)
            if not position and before and is_same(event, before):
                position = before
            if numbered is not None and numbered.is_old(event):
                duplicates += 1
                position = position or numbered.position_of(event)
            elif position:
                duplicates += 1
            else:
                position = placed[identity] = next_position + len(fresh)
                fresh.append(event)
                chosen.append(number)
            positions.append(position)
            number += 1
        answers.append(Appended(tuple(positions), duplicates))
    return Group([fresh] if fresh else [], keys[chosen], answers)


def cut_blocks(events: Sequence[Event]) -> list[tuple[Sequence[Event], bytes]]:
    """The events in pieces small enough to be read singly, each with its bytes."""
    if isinstance(events, EncodedBatch):
        most = max(min(BLOCK_EVENTS, BLOCK_BYTES // max(events.largest, 1)), 1)
        return [(piece, piece.block()) for piece in events.pieces(most)]
    blocks: list[tuple[Sequence[Event], bytes]] = []
    for start in range(0, len(events), BLOCK_EVENTS):
        _cut(events[start : start + BLOCK_EVENTS], blocks)
    return blocks


def _cut(events: Sequence[Event], blocks: list[tuple[Sequence[Event], bytes]]) -> None:
    if len(events) == 1 or sum([len(event.data) for event in events]) <= BLOCK_BYTES:
        body = encode_block(events)
        if len(events) == 1 or len(body) <= 2 * BLOCK_BYTES:
            blocks.append((events, body))
            return
    middle = len(events) // 2
    _cut(events[:middle], blocks)
    _cut(events[middle:], blocks)
