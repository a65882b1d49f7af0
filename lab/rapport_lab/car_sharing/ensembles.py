"""Ensembles of car sharing: offers, claims and confirmations travel by exchange. [EN-13]"""

from __future__ import annotations

from math import dist
from typing import Final

from rapport.ensemble import Ensemble, NodeKnowledge
from rapport_lab.car_sharing.pedestrian import FRESH_MS, Offer, Pedestrian, SeatSeeking
from rapport_lab.car_sharing.seats import KEEP_MS, Grant, Heard
from rapport_lab.car_sharing.vehicles import Placed, SeatOffering, Vehicle

BOUNDARY_METRES: Final = 2_000
"""Nobody further off is told."""


class Offers(Ensemble, every="500 ms", writes="coordinator"):
    """A passenger learns of vehicles that go its way and have seats for it."""

    coordinator: Pedestrian
    member: SeatOffering

    @staticmethod
    def membership(coordinator: Pedestrian, member: SeatOffering) -> bool:
        return member.free >= coordinator.party and coordinator.trip_with(member.way) is not None

    @staticmethod
    def exchange(coordinator: Pedestrian, member: SeatOffering) -> None:
        now_ms, trip = coordinator.town.time_ms(), coordinator.trip_with(member.way)
        if trip is not None:
            known = coordinator.offers.items()
            fresh = {name: one for name, one in known if now_ms - one.heard_ms < FRESH_MS}
            coordinator.offers = {**fresh, member.id: Offer(trip, now_ms)}

    @staticmethod
    def boundary(sender: Placed, node: NodeKnowledge) -> bool:
        return any(
            isinstance(one, Placed) and dist(sender.position, one.position) < BOUNDARY_METRES
            for one in node.components
        )


class Claims(Ensemble, every="500 ms", writes="coordinator"):
    """A vehicle learns who wants its seats, and who wants them no more."""

    coordinator: Vehicle
    member: SeatSeeking

    @staticmethod
    def membership(coordinator: Vehicle, member: SeatSeeking) -> bool:
        return coordinator.id in member.claims or member.id in coordinator.bookings

    @staticmethod
    def exchange(coordinator: Vehicle, member: SeatSeeking) -> None:
        now_ms = coordinator.town.time_ms()
        claim = member.claims.get(coordinator.id)
        known = coordinator.heard.items()
        fresh = {name: one for name, one in known if now_ms - one.heard_ms < KEEP_MS}
        told = Heard(claim, member.last_number, member.beat, now_ms)
        coordinator.heard = {**fresh, member.id: told}


class Confirmations(Ensemble, every="500 ms", writes="coordinator"):
    """A passenger learns what became of its claims, and where its vehicle is."""

    coordinator: Pedestrian
    member: SeatOffering

    @staticmethod
    def membership(coordinator: Pedestrian, member: SeatOffering) -> bool:
        return member.id in coordinator.claims and coordinator.id in member.bookings

    @staticmethod
    def exchange(coordinator: Pedestrian, member: SeatOffering) -> None:
        claimed = coordinator.claims
        kept = {name: one for name, one in coordinator.grants.items() if name in claimed}
        booking = member.bookings[coordinator.id]
        grant = Grant(booking, member.position, member.halted, tuple(member.way))
        coordinator.grants = {**kept, member.id: grant}


ENSEMBLES: Final = (Offers, Claims, Confirmations)
