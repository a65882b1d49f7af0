"""Moving a channel from one store to another, every position kept. [CH-13]

The steps: note the move, copy, compare, switch to the new store, remove the old copy, delete the
note. Each is durable before the next begins and can be repeated, so a killed move continues when it
is started again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from rapport.channel.requests.takes import load_taken, takes_as_records
from rapport.core.codec import decode_block, encode_block
from rapport.core.errors import Conflict, Corrupt, UnknownName
from rapport.store.base import (
    Block,
    LogStore,
    MovableLogStore,
    Put,
    RecordStore,
    all_blocks,
    take_log,
)
from rapport.store.placement import PLACEMENTS

MOVES = "moves"
"""Table of the record store: channel -> the running move, or the copy left behind."""
_RECORDS_AT_ONCE = 20_000
_BYTES_AT_ONCE = 4 * 1024 * 1024

Step = Literal["noted", "copied", "compared", "switched", "removed", "done"]
ReportStep = Callable[[Step | int], None]
"""Receives each finished step, and each copied position."""


class MoveNote(msgspec.Struct, frozen=True, array_like=True):
    """The stored note of a move; new fields go at the end with a default."""

    source: str
    target: str
    state: Literal["copying", "removing", "kept"]


class MoveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a move: the positions now in `target`, and a digest of the copied events (empty
    when nothing was copied).
    """

    channel: str
    source: str
    target: str
    first: int
    last: int
    digest: str


class ChannelMover:
    """Moves channels while no node runs. `stores` are all that a channel may be in."""

    def __init__(
        self,
        stores: Mapping[str, MovableLogStore],
        records: RecordStore,
        place_of: Callable[[str], str],
    ) -> None:
        self._stores, self._records, self._place_of = stores, records, place_of

    def move(
        self, name: str, target: str, *, keep: bool = False, report: ReportStep = lambda _: None
    ) -> MoveResult:
        """Moves a channel, or continues an interrupted move; the old copy is removed unless `keep`.
        A channel that is there already is left alone.

        Raises UnknownName (no such channel), Conflict (the target holds another log of this name),
        Corrupt (the copy differs; it is then removed), StoreUnavailable.
        """
        self._finish_removal(name, report)
        home, digest = self._place_of(name), ""
        if self._stores[home].last_position(name) == 0:
            raise UnknownName("channel", name, self._stores[home].logs(), code="channel.unknown")
        if home != target:
            digest = self._bring(name, home, target, keep, report)
            self._finish_removal(name, report)
        report("done")
        store = self._stores[target]
        return MoveResult(
            channel=name,
            source=home,
            target=target,
            first=store.first_position(name),
            last=store.last_position(name),
            digest=digest,
        )

    # --- the steps --------------------------------------------------------------------------------

    def _bring(self, name: str, home: str, target: str, keep: bool, report: ReportStep) -> str:
        source, destination = self._stores[home], self._stores[target]
        self._check_free(name, home, target)
        self._records.put(MOVES, name, _encode(MoveNote(home, target, "copying")))
        report("noted")
        _copy(name, source, destination, report)
        report("copied")
        digest = self._compare(name, source, destination)
        report("compared")
        after = MoveNote(home, target, "kept" if keep else "removing")
        placed = Put(PLACEMENTS, name, target.encode())
        taken = takes_as_records(source, name, load_taken(self._records, name))
        self._records.apply((placed, Put(MOVES, name, _encode(after)), *taken))
        report("switched")
        return digest

    def _finish_removal(self, name: str, report: ReportStep) -> None:
        note = self._note(name)
        if note is not None and note.state == "removing":
            self._stores[note.source].remove(take_log(name))
            self._stores[note.source].remove(name)
            report("removed")
            self._records.delete(MOVES, name)

    def _check_free(self, name: str, home: str, target: str) -> None:
        """Checks that a log of this name in the target is a copy of ours: begun by this move, or
        kept by an earlier one.
        """
        if self._stores[target].last_position(name) == 0:
            return
        ours = (MoveNote(home, target, "copying"), MoveNote(target, home, "kept"))
        if self._note(name) not in ours:
            raise Conflict(
                f"{target} already holds a log named {name!r} that is not a copy of this channel",
                code="channel.move_occupied",
                hint="is it another site's? use another prefix (nats) or database (postgres)",
            )

    def _compare(self, name: str, source: LogStore, target: MovableLogStore) -> str:
        after = max(source.first_position(name), target.first_position(name)) - 1
        digest = digest_of(target, name, after)
        if digest_of(source, name, after) == digest:
            return digest
        target.remove(name)
        self._records.delete(MOVES, name)
        raise Corrupt(
            f"the copy of channel {name!r} is not the same as the original; nothing was moved",
            code="channel.move_differs",
            hint="the copy was removed; run the move again",
        )

    def _note(self, name: str) -> MoveNote | None:
        raw = self._records.get(MOVES, name)
        return None if raw is None else msgspec.msgpack.decode(raw, type=MoveNote)


def _encode(note: MoveNote) -> bytes:
    return msgspec.msgpack.encode(note)


# --- copying --------------------------------------------------------------------------------------


def _copy(name: str, source: LogStore, target: MovableLogStore, report: ReportStep) -> None:
    """Appends missing events to the target, at the same positions; resumable."""
    last = source.last_position(name)
    reached = target.last_position(name)
    first = source.first_position(name)
    if reached < first - 1:
        target.skip_to(name, first)
        reached = first - 1
    while reached < last:
        blocks = source.read_after(name, reached, max_records=_RECORDS_AT_ONCE)
        for group in _groups(blocks, reached):
            if group[0].first > reached + 1:
                target.skip_to(name, group[0].first)  # damaged blocks are not copied
            target.restore(name, group)
            reached = group[-1].last
            report(reached)
        if not blocks:
            target.skip_to(name, last + 1)
            reached = last


def _groups(blocks: Sequence[Block], after: int) -> Iterator[list[Block]]:
    """The blocks behind a position, adjacent ones in groups that are written together."""
    group: list[Block] = []
    size = 0
    for block in blocks:
        whole = block if block.first > after else _rest(block, after)
        if group and (whole.first != group[-1].last + 1 or size > _BYTES_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(whole)
        size += len(whole.body)
    if group:
        yield group


def _rest(block: Block, after: int) -> Block:
    events = decode_block(block.body)[after - block.first + 1 :]
    return Block(after + 1, len(events), block.received, encode_block(events))


# --- comparing ------------------------------------------------------------------------------------


def digest_of(log: LogStore, name: str, after: int) -> str:
    """A digest of events, positions and arrivals behind a position, whatever the blocks."""
    digest = hashlib.blake2b(digest_size=16)
    last = log.last_position(name)
    for block in all_blocks(log, name, after, last=last, max_records=_RECORDS_AT_ONCE):
        _take_in(digest, block, after)
    digest.update(f"end {last}".encode())
    return digest.hexdigest()


def _take_in(digest: hashlib.blake2b, block: Block, after: int) -> None:
    try:
        events = decode_block(block.body)
    except Corrupt:
        digest.update(f"{block.first} {block.count} {block.received}".encode() + block.body)
        return
    for position, event in enumerate(events, start=block.first):
        if position > after:
            digest.update(f"{position} {block.received} ".encode())
            digest.update(msgspec.msgpack.encode(event, order="sorted"))
