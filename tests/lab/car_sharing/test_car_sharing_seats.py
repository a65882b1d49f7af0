"""No seat is ever held by two, whatever the network does. [EN-13]

A vehicle and passengers with clocks of their own, and a network that delivers any snapshot that was
ever published, at any time, in any order, or never.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.kernel.clock import Chance
from rapport_lab.car_sharing import seats as seats_module
from rapport_lab.car_sharing.seats import (
    HOLD_MS,
    KEEP_MS,
    Booking,
    Claim,
    Desk,
    Grant,
    Heard,
    free_seats,
    is_held,
    settle,
    with_beat,
)
from support.examples import examples

HERE = (0, 0)
THERE = (500, 0)


class Vehicle:
    """Settles what it hears, by a clock of its own speed."""

    def __init__(self, capacity: int, speed: float) -> None:
        self.capacity, self.speed = capacity, speed
        self.bookings: dict[str, Booking] = {}
        self.seen: dict[str, tuple[int, int]] = {}
        self.heard: dict[str, Heard] = {}
        self.opens_ms = 0.0
        self.published: list[dict[str, Booking]] = []

    def settle(self, time_ms: float) -> None:
        now_ms = time_ms * self.speed
        desk = Desk(self.capacity, {HERE, THERE}, None, now_ms, self.opens_ms)
        self.bookings, self.seen = settle(self.bookings, self.heard, self.seen, desk)
        self.published.append(self.bookings)

    def restart(self, time_ms: float) -> None:
        self.bookings, self.seen, self.heard = {}, {}, {}
        self.opens_ms = time_ms * self.speed + KEEP_MS


class Passenger:
    """Claims and gives up as chance has it."""

    def __init__(self, name: str, speed: float) -> None:
        self.name, self.speed = name, speed
        self.number = self.beat = 0
        self.claim: Claim | None = None
        self.beats: dict[int, float] = {}
        self.grant: Grant | None = None
        self.published: list[Heard] = []

    def live(self, time_ms: float) -> None:
        self.beat += 1
        self.beats = with_beat(self.beats, self.beat, time_ms * self.speed)

    def decide(self, party: int) -> None:
        if self.claim is not None:
            self.claim = None
            return
        self.number += 1
        self.claim = Claim(self.number, party, HERE, THERE)

    def publish(self) -> None:
        self.published.append(Heard(self.claim, self.number, self.beat, 0.0))

    def held(self, time_ms: float) -> tuple[int, ...]:
        if self.claim is None or self.grant is None:
            return ()
        is_mine = is_held(self.claim, self.grant, self.beats, time_ms * self.speed)
        return self.grant.booking.seats if is_mine else ()


class Play:
    """One vehicle, some passengers, and a network that may do anything."""

    def __init__(self, seed: int) -> None:
        self.chance = Chance(seed)
        speeds = [self.chance.uniform(0.97, 1.03) for _ in range(6)]
        self.vehicle = Vehicle(self.chance.randint(1, 3), speeds[0])
        self.people = [
            Passenger(name, speed) for name, speed in zip("abcde", speeds[1:], strict=True)
        ]
        self.is_in_order = self.chance.random() < 0.5
        self.time_ms = 0.0
        self.times_held = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.time_ms += self.chance.expovariate(1 / 250)
            self.step()
            self.check()

    def step(self) -> None:
        chance, person = self.chance, self.chance.choice(self.people)
        draw = chance.random()
        if draw < 0.2:
            person.live(self.time_ms)
            person.publish()
        elif draw < 0.27:
            person.decide(chance.randint(1, 2))
            person.publish()
        elif draw < 0.55 and person.published:
            self.vehicle.heard[person.name] = self.drawn(person.published)
        elif draw < 0.75:
            self.vehicle.settle(self.time_ms)
        elif draw < 0.998 and self.vehicle.published:
            booking = self.drawn(self.vehicle.published).get(person.name)
            if booking is not None:
                person.grant = Grant(booking, (0.0, 0.0), None, ())
        elif draw >= 0.998:
            self.vehicle.restart(self.time_ms)
            self.time_ms += chance.choice([0, 5_000, 20_000])

    def drawn(self, published: list) -> object:
        """Most often the newest; sometimes one that was long under way."""
        if self.is_in_order or self.chance.random() < 0.7:
            return published[-1 - min(int(self.chance.expovariate(1)), len(published) - 1)]
        return self.chance.choice(published)

    def check(self) -> None:
        held = [(person.name, seat) for person in self.people for seat in person.held(self.time_ms)]
        taken = [seat for _name, seat in held]
        assert len(taken) == len(set(taken)), held
        assert all(1 <= seat <= self.vehicle.capacity for seat in taken)
        assert free_seats(self.vehicle.bookings, self.vehicle.capacity) >= 0
        self.times_held += bool(taken)


@given(seed=st.integers(0, 2**32))
def test_two_never_hold_the_same_seat(seed: int) -> None:
    Play(seed).run(800)


@pytest.mark.long
@settings(max_examples=examples(1_000))
@given(seed=st.integers(0, 2**32))
def test_two_never_hold_the_same_seat_in_many_plays(seed: int) -> None:
    Play(seed).run(1_500)


def test_seats_are_held_in_these_plays() -> None:
    plays = [Play(seed) for seed in range(10)]
    for play in plays:
        play.run(400)
    assert sum(play.times_held for play in plays) > 400


def is_caught(plays: int, monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> bool:
    """Whether a play shows a fault once the protocol is broken on purpose."""
    monkeypatch.setattr(seats_module, name, value)
    for seed in range(plays):
        try:
            Play(seed).run(800)
        except AssertionError:
            return True
    return False


def test_a_vehicle_that_gives_a_seat_away_too_soon_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert is_caught(400, monkeypatch, "KEEP_MS", HOLD_MS / 4)


def test_a_vehicle_that_takes_an_old_silence_for_a_release_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = seats_module._renewed

    def hasty(booking: Booking, heard: Heard | None, desk: Desk) -> Booking | None:
        if heard is not None and heard.claim is None:
            return None
        return whole(booking, heard, desk)

    assert is_caught(400, monkeypatch, "_renewed", hasty)


def test_a_passenger_that_counts_from_when_it_heard_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who counts a lease from its arrival, not from its own beat, holds on for too long."""

    def never_lets_go(beats: dict[int, float], beat: int, now_ms: float) -> dict[int, float]:
        return dict.fromkeys([*beats, beat], now_ms)

    monkeypatch.setitem(globals(), "with_beat", never_lets_go)
    assert is_caught(400, monkeypatch, "HOLD_MS", HOLD_MS)


def desk(now_ms: float = 0.0, **changes: object) -> Desk:
    return msgspec.structs.replace(Desk(2, {HERE, THERE}, None, now_ms), **changes)


def claimed(number: int, *, seats: int = 1, beat: int = 1, is_boarding: bool = False) -> Heard:
    return Heard(Claim(number, seats, HERE, THERE, is_boarding), number, beat, 0.0)


def test_who_comes_too_late_is_refused_and_gets_the_seat_once_it_is_free() -> None:
    bookings, seen = settle({}, {"ana": claimed(1, seats=2), "ben": claimed(1)}, {}, desk())
    assert bookings["ana"].seats == (1, 2)
    assert bookings["ben"].seats == ()
    gone = {"ana": Heard(None, 1, 2, 0.0), "ben": claimed(2, beat=2)}
    bookings, _seen = settle(bookings, gone, seen, desk(1_000.0))
    assert "ana" not in bookings
    assert bookings["ben"].seats == (1,)


def test_who_is_not_heard_any_more_loses_the_seat_and_does_not_get_it_back_by_old_words() -> None:
    heard = {"ana": claimed(1)}
    bookings, seen = settle({}, heard, {}, desk())
    bookings, seen = settle(bookings, heard, seen, desk(KEEP_MS))
    assert bookings
    bookings, seen = settle(bookings, heard, seen, desk(KEEP_MS + 1))
    assert not bookings
    bookings, seen = settle(bookings, heard, seen, desk(KEEP_MS + 2))
    assert not bookings
    bookings, seen = settle(bookings, {"ana": claimed(1, beat=2)}, seen, desk(KEEP_MS + 3))
    assert bookings["ana"].seats == (1,)


def test_one_gets_in_only_while_the_doors_are_open() -> None:
    bookings, seen = settle({}, {"ana": claimed(1)}, {}, desk())
    at_the_door = {"ana": claimed(1, is_boarding=True)}
    bookings, seen = settle(bookings, at_the_door, seen, desk(100.0))
    assert not bookings["ana"].is_aboard
    bookings, seen = settle(bookings, at_the_door, seen, desk(200.0, halted=HERE))
    assert bookings["ana"].is_aboard
    bookings, seen = settle(bookings, at_the_door, seen, desk(300.0, ahead={THERE}))
    assert bookings["ana"].is_aboard
    assert not bookings["ana"].is_missed


def test_who_is_not_where_it_should_be_is_missed_and_keeps_the_seat_until_it_lets_go() -> None:
    bookings, seen = settle({}, {"ana": claimed(1)}, {}, desk())
    bookings, seen = settle(bookings, {}, seen, desk(100.0, ahead={THERE}))
    assert bookings["ana"].is_missed
    assert bookings["ana"].seats == (1,)


def test_a_place_that_was_passed_and_more_seats_than_there_are_are_refused() -> None:
    bookings, _seen = settle({}, {"ana": claimed(1)}, {}, desk(ahead={THERE}))
    assert bookings["ana"].seats == ()
    bookings, _seen = settle({}, {"ana": claimed(1, seats=3)}, {}, desk())
    assert bookings["ana"].seats == ()
    bookings, _seen = settle({}, {"ana": claimed(1, seats=-1)}, {}, desk())
    assert bookings["ana"].seats == ()
