"""Readings carried by gossip: a device without a link to its node tells its neighbours, who pass it
on; the node confirms by what it knows itself, and the device forgets. [EN-14]

A device publishes the oldest readings that nobody confirmed, all of them again and again, and a
receipt confirms all up to a number: so loss, doubling, disorder and the death of whoever carries
them delay a reading and never lose or double it. Any node carries, without knowing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.ids import content_id
from rapport.ensemble.backlog import FARTHEST_MS, Backlog, Reading, Receipt
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.fields import Local
from rapport.ensemble.model.processes import process
from rapport.ensemble.model.role import Role

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
    """By the component whose readings they are."""


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


class Told(msgspec.Struct, frozen=True):
    """What a version of a device's knowledge says of its readings."""

    life: str
    readings: tuple[Reading, ...]
    to: str = ""
    dropped: int = 0


class Fresh(msgspec.Struct, frozen=True):
    """Readings that a node has not got yet, and the receipt once it has them."""

    readings: tuple[Reading, ...]
    receipt: Receipt
    missing: int = 0
    """Numbers that were left out: readings that the device gave up, as it had too many."""


def told_by(values: Mapping[str, Any]) -> Told:
    """Reads the knowledge of a device; raises InvalidInput."""
    try:
        told = msgspec.convert(dict(values), Told)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"this says nothing of readings: {error}", code="ensemble.bad_readings"
        ) from None
    numbers = [one.number for one in told.readings]
    is_counted = all(
        0 < one.number < _MOST and abs(one.time_ms) < FARTHEST_MS for one in told.readings
    )
    if not (told.life or not numbers) or not is_counted or numbers != sorted(set(numbers)):
        raise InvalidInput("readings are not numbered in order", code="ensemble.bad_readings")
    return told


def fresh_of(told: Told, receipt: Receipt) -> Fresh:
    """What is new to who has everything up to the receipt. Pure; the same again gives nothing."""
    number = receipt.number if receipt.life == told.life else 0
    fresh = tuple(one for one in told.readings if one.number > number)
    if not fresh:
        return Fresh((), receipt)
    last = fresh[-1].number
    return Fresh(fresh, Receipt(told.life, last), last - number - len(fresh))


def reading_id(component: str, life: str, number: int) -> str:
    """The name of a reading among all readings of all devices; always the same."""
    return f"{number}.{content_id(component, life)}"
