"""Readings of devices that are often out of range: kept on the device, delivered by gossip. [EN-14]

A device numbers its readings and publishes those not yet confirmed. A node that collects them
publishes a receipt with the last number it stored. The backlog can survive restarts in a file.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from rapport.core.errors import Corrupt, InvalidInput, TooLarge
from rapport.core.event import content_id
from rapport.ensemble.model.component import Component, process
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.role import Local, Role
from rapport.kernel.clock import Chance
from rapport.kernel.files import atomic_replacement

MOST_BYTES = 4_096
"""Of the data of one reading, as JSON."""
FARTHEST_MS = 2**53
"""Times of readings are nearer to 1970 than that; nodes take no others."""
_LINES_TO_SPARE = 1_000


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """Something that a device saw."""

    number: int
    """Counts from 1 within a life of the backlog."""
    time_ms: int
    """When it was seen, by the device's wall clock."""
    data: str
    """What was seen, as JSON."""


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """What a node has of a device's readings: all up to this number."""

    life: str = ""
    number: int = 0


class _Line(msgspec.Struct, array_like=True, omit_defaults=True):
    """Of the file: a life begins, a reading was noted, or readings up to a number are done with."""

    life: str = ""
    reading: Reading | None = None
    done: int = 0


class Backlog:
    """The unconfirmed readings, in order. Safe to call from any thread.

    With a file, a reading is on disk when `note` returns. Without one, a restart loses unconfirmed
    readings and starts with a new `life`, so that no two readings ever have the same name. The file
    is rewritten now and then: it holds at most two lines for each unconfirmed reading, and some
    more.
    """

    def __init__(self, path: Path | None = None, *, most: int = 10_000, life: str = "") -> None:
        """`most`: readings that are kept; for more the oldest are dropped, and counted. Raises
        Corrupt for a file that is none of ours, OSError where it cannot be written.
        """
        self.life = life or Chance.from_machine().randbytes(8).hex()
        self.last = 0
        """The number of the last reading."""
        self.dropped = 0
        """Readings of this process that were given up, as there were too many."""
        self._most = max(1, most)
        self._waiting: deque[Reading] = deque()
        self._change = threading.Lock()
        self._file: IO[bytes] | None = None
        self._path, self._lines = path, 0
        self._is_torn = False
        """Whether the file may hold something of a line that could not be written."""
        if path is not None:
            self._restore(path)
            self._rewrite(path)

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, data: Any, time_ms: float) -> Reading:
        """Takes in what was seen, and when, to the ms; raises InvalidInput for what is not JSON, or
        no time, TooLarge, OSError.
        """
        text, seen_ms = _as_json(data), _as_time(time_ms)
        with self._change:
            reading = Reading(self.last + 1, seen_ms, text)
            self._write(_Line(reading=reading))
            self._append(reading)
            with suppress(OSError):  # the reading is kept; the next one finds out
                self._tidy_up()
            return reading

    def confirm(self, receipt: Receipt) -> None:
        """Removes confirmed readings; a receipt of an earlier run is ignored."""
        with self._change:
            if receipt.life != self.life or receipt.number > self.last:
                return
            before = len(self._waiting)
            while self._waiting and self._waiting[0].number <= receipt.number:
                self._waiting.popleft()
            if len(self._waiting) != before:
                self._write(_Line(done=receipt.number))
                self._tidy_up()

    def first(self, most: int, most_bytes: int) -> list[Reading]:
        """The oldest readings, as many as fit; at least one where there is one."""
        with self._change:
            chosen: list[Reading] = []
            for reading in self._waiting:
                most_bytes -= len(reading.data.encode()) + 16
                if chosen and (most_bytes < 0 or len(chosen) >= most):
                    break
                chosen.append(reading)
            return chosen

    def _append(self, reading: Reading) -> None:
        self.last = reading.number
        self._waiting.append(reading)
        while len(self._waiting) > self._most:
            self._waiting.popleft()
            self.dropped += 1

    def close(self) -> None:
        with self._change:
            if self._file is not None:
                self._file.close()
                self._file = None

    # --- the file ---

    def _restore(self, path: Path) -> None:
        lines = path.read_bytes().splitlines() if path.exists() else []
        for number, raw in enumerate(lines):
            try:
                self._take(msgspec.json.decode(raw, type=_Line))
            except msgspec.DecodeError:
                if number == len(lines) - 1:
                    return  # cut off by a power failure; its storage was never confirmed
                raise Corrupt(
                    f"line {number + 1} of {path} cannot be read",
                    code="ensemble.bad_backlog",
                    hint="move the file away: its readings are given up then",
                ) from None

    def _take(self, line: _Line) -> None:
        if line.life:
            self.life = line.life
        if line.reading is not None:
            if self._waiting and self._waiting[-1].number == line.reading.number:
                self._waiting.pop()  # refused, as the disk was full, and its number given again
            self._append(line.reading)
        if line.done:
            self.last = max(self.last, line.done)
        while self._waiting and self._waiting[0].number <= line.done:
            self._waiting.popleft()

    def _rewrite(self, path: Path) -> None:
        """Makes the file anew with what waits; the old or the new is there after a crash."""
        done = self._waiting[0].number - 1 if self._waiting else self.last
        lines = [_Line(life=self.life, done=done), *(_Line(reading=one) for one in self._waiting)]
        with atomic_replacement(path) as new:
            new.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            self._is_torn = True
            if self._file is not None:
                with suppress(OSError):  # lines that did not reach the disk are in the new file
                    self._file.close()
        self._file, self._lines, self._is_torn = path.open("ab"), len(lines), False

    def _write(self, line: _Line) -> None:
        """On disk, or OSError and as if never written: its number is the next one's."""
        if self._file is None:
            return
        if self._is_torn and self._path is not None:
            self._rewrite(self._path)
        self._is_torn = True
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._lines, self._is_torn = self._lines + 1, False

    def _tidy_up(self) -> None:
        if self._path is not None and self._lines > 2 * len(self._waiting) + _LINES_TO_SPARE:
            self._rewrite(self._path)


def _as_time(time_ms: float) -> int:
    """Checked here: one that no node takes would hold up all that come after it."""
    is_number = isinstance(time_ms, int | float) and not isinstance(time_ms, bool)
    if not is_number or not abs(time_ms) < FARTHEST_MS:
        raise InvalidInput(
            f"a reading was seen at some ms since 1970, not at {time_ms!r:.60}",
            code="ensemble.bad_reading",
            hint="int(time.time() * 1000)",
        )
    return int(time_ms)


def _as_json(data: Any) -> str:
    try:
        raw = msgspec.json.encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(
            f"a reading is JSON, and this is not: {error}"[:300], code="ensemble.bad_reading"
        ) from None
    if len(raw) > MOST_BYTES:
        raise TooLarge(
            f"a reading has {len(raw)} bytes, more than {MOST_BYTES}",
            code="ensemble.reading_too_large",
            hint="readings travel with gossip; send large things another way",
        )
    return raw.decode()


WINDOW = 64
"""Readings that travel at a time."""
WINDOW_BYTES = 16_384
"""Of their data together; a quarter of what a component may publish."""
_MOST = 2**53
"""Of numbers."""


class Carried(Role):
    """Who has readings for a node."""

    to: str
    """The component that collects them; empty: any."""
    life: str
    readings: list[Reading]
    """The oldest that are not confirmed."""
    noted: int
    """The number of the last reading, of whatever life."""
    dropped: int
    confirmed: Receipt


class Collecting(Role):
    """Who takes readings for a node."""

    receipts: dict[str, Receipt]
    """By component of the device."""


class Confirming(Ensemble, every="500 ms", writes="coordinator"):
    """Tells a device what its node has."""

    coordinator: Carried
    member: Collecting

    def membership(coordinator: Any, member: Any) -> bool:
        return coordinator.to in ("", member.id) and coordinator.id in member.receipts

    def exchange(coordinator: Any, member: Any) -> None:
        receipt = member.receipts[coordinator.id]
        known = coordinator.confirmed
        if receipt.life != coordinator.life:
            return  # of a life before: another node that has this one is not to be hidden by it
        if receipt.life != known.life or receipt.number > known.number:
            coordinator.confirmed = receipt


class Reader(Component, Carried):
    """A device: subclass it, and call `note` in a process, or from wherever the hardware calls.

    `backlog=Backlog(Path(...))` keeps readings over restarts.
    """

    to: str = ""
    life: str = ""
    readings: list[Reading] = []  # noqa: RUF012 - a field: each component has its own
    noted: int = 0
    dropped: int = 0
    confirmed: Receipt = Receipt()
    backlog: Local[Backlog] = dataclasses.field(default_factory=Backlog)

    def note(self, data: Any, time_ms: float) -> Reading:
        """Something was seen; on its way at the next publication. May be called from any thread."""
        return self.backlog.note(data, time_ms)

    @process(
        every="200 ms",
        on_change="confirmed",
        reads="confirmed",
        writes=("life", "readings", "noted", "dropped"),
    )
    def show(self) -> None:
        """Publishes what waits, without what the node has. Done twice it is done once."""
        backlog = self.backlog
        backlog.confirm(self.confirmed)
        self.life, self.noted, self.dropped = backlog.life, backlog.last, backlog.dropped
        self.readings = backlog.first(WINDOW, WINDOW_BYTES)


class Collector(Component, Collecting):
    """Says what a node has. Its node fills in the receipts."""

    receipts: dict[str, Receipt] = {}  # noqa: RUF012 - a field: each component has its own


class DeviceKnowledge(msgspec.Struct, frozen=True):
    """The readings in a device's knowledge."""

    life: str
    readings: tuple[Reading, ...]
    to: str = ""
    dropped: int = 0


class NewReadings(msgspec.Struct, frozen=True):
    """Readings that a node has not got yet, and the receipt once it has them."""

    readings: tuple[Reading, ...]
    receipt: Receipt
    missing: int = 0
    """Numbers that were left out: readings that the device gave up, as it had too many."""


def parse_device_knowledge(values: Mapping[str, Any]) -> DeviceKnowledge:
    """Reads the knowledge of a device; raises InvalidInput."""
    try:
        knowledge = msgspec.convert(dict(values), DeviceKnowledge)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"this says nothing of readings: {error}", code="ensemble.bad_readings"
        ) from None
    numbers = [one.number for one in knowledge.readings]
    is_counted = all(
        0 < one.number < _MOST and abs(one.time_ms) < FARTHEST_MS for one in knowledge.readings
    )
    if not (knowledge.life or not numbers) or not is_counted or numbers != sorted(set(numbers)):
        raise InvalidInput("readings are not numbered in order", code="ensemble.bad_readings")
    return knowledge


def new_readings(knowledge: DeviceKnowledge, receipt: Receipt) -> NewReadings:
    """The readings after the receipt. Pure; repeated knowledge gives nothing."""
    number = receipt.number if receipt.life == knowledge.life else 0
    fresh = tuple(one for one in knowledge.readings if one.number > number)
    if not fresh:
        return NewReadings((), receipt)
    last = fresh[-1].number
    return NewReadings(fresh, Receipt(knowledge.life, last), last - number - len(fresh))


def reading_id(component: str, life: str, number: int) -> str:
    """The name of a reading among all readings of all devices; always the same."""
    return f"{number}.{content_id(component, life)}"
