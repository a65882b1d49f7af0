"""Matching, travelling and choosing: the pure parts of car sharing. [EN-13]"""

from __future__ import annotations

from itertools import pairwise
from math import dist
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.knowledge import Knowledge
from rapport.ensemble.model.host import Host
from rapport.kernel.clock import Chance, Now
from rapport_lab.car_sharing.cast import CastSettings, draw_cast, make_town
from rapport_lab.car_sharing.map_watcher import Watcher
from rapport_lab.car_sharing.pedestrian import (
    ANSWER_MS,
    FRESH_MS,
    Offer,
    Seeker,
    at_the_door,
    given_up,
    to_claim,
    vehicle_aboard,
)
from rapport_lab.car_sharing.seats import LEAD_S, Booking, Claim, Grant, Trip, best_trip, walking_s
from rapport_lab.car_sharing.town import (
    Town,
    Travel,
    advanced,
    ahead,
    heading_to,
    position,
    standing,
)
from rapport_lab.car_sharing.vehicles import make_bus
from rapport_lab.ensemble.simulation.streets import GridSettings, Street, StreetMap, grid_streets

WALK = 1.4
ROW = StreetMap([(0, 0), (100, 0), (200, 0), (300, 0)], [Street(n, n + 1, 10.0) for n in range(3)])
"""A street with four places, 10 s apart by car."""


# --- who goes whose way ---


def test_a_walker_meets_a_car_on_its_way_and_gets_off_where_it_is_nearest() -> None:
    way = [(0, 0, 100), (500, 0, 600), (1_000, 0, 1_100), (2_000, 0, 2_100), (3_000, 0, 3_100)]
    trip = best_trip(way, (500, 30), (2_000, 50), WALK, 10)
    assert trip is not None
    assert (trip.meet, trip.drop) == ((500, 0), (2_000, 0))
    assert trip.meet_s == pytest.approx(60)
    assert trip.arrival_s == pytest.approx(210 + walking_s((2_000, 0), (2_000, 50), WALK))


def test_nobody_rides_the_wrong_way_or_runs_after_a_car() -> None:
    way = [(0, 0, 100), (500, 0, 600), (1_000, 0, 1_100)]
    assert best_trip(way, (500, 0), (-900, 0), WALK, 10) is None
    assert best_trip(way, (0, 900), (1_000, 0), WALK, 10) is None
    assert best_trip([(0, 0, 0), (1_000, 0, 900)], (0, 0), (1_000, 0), WALK, 10) is None
    assert best_trip([], (0, 0), (1_000, 0), WALK, 10) is None


waypoints = st.lists(
    st.tuples(st.integers(0, 2_000), st.integers(0, 2_000), st.integers(1, 300)), max_size=12
)
places = st.tuples(st.integers(0, 2_000), st.integers(0, 2_000))


@given(steps=waypoints, start=places, end=places)
def test_a_trip_is_on_the_way_in_order_and_quicker_than_walking(
    steps: list[tuple[int, int, int]], start: tuple[int, int], end: tuple[int, int]
) -> None:
    times = [sum(step[2] for step in steps[: number + 1]) for number in range(len(steps))]
    way = [(east, north, there) for (east, north, _), there in zip(steps, times, strict=True)]
    trip = best_trip(way, start, end, WALK, 20)
    if trip is None:
        return
    spots = [(east, north) for east, north, _there in way]
    assert any(
        spots[number] == trip.meet and trip.drop in spots[number + 1 :]
        for number in range(len(spots))
    )
    assert trip.meet_s >= LEAD_S
    assert trip.meet_s <= trip.arrival_s < walking_s(start, end, WALK)


# --- on the way ---


def by_car(start: int, end: int) -> float:
    return ROW.speed(start, end)


def test_a_car_moves_along_its_way_and_stands_where_it_has_to() -> None:
    travel = heading_to(standing(0, 0.0), ROW, 3, by_car=True)
    travel = advanced(travel, ROW, by_car, 5_000)
    assert position(travel, ROW) == (50, 0)
    assert ahead(travel, ROW, by_car) == [(1, 5.0), (2, 15.0), (3, 25.0)]
    travel = advanced(travel, ROW, by_car, 60_000, halts={2})
    assert (position(travel, ROW), travel.halted_ms) == ((200, 0), 60_000)
    assert ahead(travel, ROW, by_car)[0] == (2, 0.0)
    travel = advanced(travel, ROW, by_car, 65_000, halts={2})
    assert (position(travel, ROW), travel.halted_ms) == ((250, 0), None)
    travel = advanced(travel, ROW, by_car, 99_000)
    assert (position(travel, ROW), travel.halted_ms) == ((300, 0), 99_000)
    assert advanced(travel, ROW, by_car, 120_000).halted_ms == 99_000


def test_in_the_midst_of_a_street_a_car_goes_to_its_end_and_a_walker_turns_round() -> None:
    travel = advanced(heading_to(standing(0, 0.0), ROW, 3, by_car=True), ROW, by_car, 4_000)
    assert position(travel, ROW) == (40, 0)
    driven = heading_to(travel, ROW, 0, by_car=True)
    assert (driven.way, position(driven, ROW)) == ((0, 1, 0), (40, 0))
    walked = heading_to(travel, ROW, 0, by_car=False)
    assert (walked.way, position(walked, ROW)) == ((1, 0), (40, 0))
    assert heading_to(walked, ROW, 3, by_car=False).way == (0, 1, 2, 3)


@given(seed=st.integers(0, 1_000), steps=st.lists(st.integers(0, 20_000), max_size=15))
def test_nobody_jumps(seed: int, steps: list[int]) -> None:
    grid = GridSettings(width_metres=500, height_metres=500, block_metres=100, jitter_metres=10)
    streets, chance = grid_streets(grid, Chance(3)), Chance(seed)
    travel: Travel = standing(chance.randrange(len(streets.places)), 0.0)
    time_ms = 0.0
    for step in steps:
        goal = chance.randrange(len(streets.places))
        is_car = chance.random() < 0.5
        now = position(travel, streets)
        travel = heading_to(travel, streets, goal, by_car=is_car)
        before = position(travel, streets)
        assert dist(now, before) < 0.2
        halts = {chance.randrange(len(streets.places))}
        travel = advanced(travel, streets, streets.speed, time_ms + step, halts)
        time_ms += step
        most = streets.top_speed * step / 1_000
        assert dist(before, position(travel, streets)) <= most + 0.2
        for start, end in pairwise(travel.way):
            assert end in streets.neighbours(start)


# --- what to claim ---

TRIP = Trip((0, 0), (500, 0), 10.0, 60.0)


def seeker(**changes: Any) -> Seeker:
    plain = Seeker(
        now_ms=20_000,
        position=(0.0, 0.0),
        destination=(500, 0),
        walk_speed=WALK,
        claims={},
        made_ms={},
        offers={},
        grants={},
        beats={7: 19_000},
        avoided={},
    )
    return msgspec.structs.replace(plain, **changes)


def grant(
    number: int = 1, *, seats: tuple[int, ...] = (1,), beat: int = 7, **changes: Any
) -> Grant:
    booking = Booking(number, beat, seats, (0, 0), (500, 0), 0.0, **changes)
    return Grant(booking, (0.0, 0.0), None, ((0, 0, 100), (500, 0, 1_000)))


CLAIM = Claim(1, 1, (0, 0), (500, 0))


def test_the_soonest_fresh_offer_is_claimed() -> None:
    late = TRIP._replace(arrival_s=50.0)
    offers = {
        "car-1": Offer(TRIP, 19_900),
        "car-2": Offer(late, 19_900),
        "car-3": Offer(TRIP._replace(arrival_s=1.0), 20_000 - FRESH_MS - 1),
    }
    assert to_claim(seeker(offers=offers)) == ("car-2", late)
    assert to_claim(seeker(offers=offers, avoided={"car-2": 30_000})) == ("car-1", TRIP)
    assert to_claim(seeker()) is None


def test_who_waits_for_an_answer_claims_nothing_else() -> None:
    one = seeker(claims={"car-9": CLAIM}, offers={"car-1": Offer(TRIP, 20_000)})
    assert to_claim(one) is None


def test_who_has_a_seat_changes_only_for_a_much_sooner_one_and_keeps_it_until_then() -> None:
    has_one = {"claims": {"car-9": CLAIM}, "grants": {"car-9": grant()}}  # there in 100 s
    sooner = {"car-1": Offer(TRIP._replace(arrival_s=50.0), 20_000)}
    assert to_claim(seeker(**has_one, offers=sooner)) is not None
    assert (
        to_claim(seeker(**has_one, offers={"car-1": Offer(TRIP._replace(arrival_s=90.0), 20_000)}))
        is None
    )
    both = {"car-9": CLAIM, "car-1": Claim(2, 1, (0, 0), (500, 0))}
    made = {2: 19_500.0}
    assert given_up(seeker(claims=both, grants=has_one["grants"], made_ms=made)) == []
    confirmed = {"car-9": grant(), "car-1": grant(2)}
    assert given_up(seeker(claims=both, grants=confirmed)) == ["car-9"]


@pytest.mark.parametrize(
    ("heard", "is_over"),
    [
        (grant(), False),
        (grant(seats=()), True),
        (grant(is_missed=True), True),
        (grant(beat=3), True),
        (grant(is_aboard=True), False),
        (msgspec.structs.replace(grant(is_aboard=True), halted=(500, 0)), True),
        (msgspec.structs.replace(grant(is_aboard=True), way=((900, 0, 10),)), True),
        (None, False),
    ],
    ids=["held", "refused", "missed", "silent", "aboard", "there", "passed", "unanswered"],
)
def test_a_claim_is_given_up_when_nothing_can_come_of_it(
    heard: Grant | None, is_over: bool
) -> None:
    grants = {"car-9": heard} if heard is not None else {}
    one = seeker(claims={"car-9": CLAIM}, grants=grants, made_ms={1: 15_000})
    assert given_up(one) == (["car-9"] if is_over else [])


def test_a_claim_that_nobody_answers_is_given_up_after_a_while() -> None:
    one = seeker(claims={"car-9": CLAIM}, made_ms={1: 20_000 - ANSWER_MS - 1})
    assert given_up(one) == ["car-9"]


def test_one_gets_in_where_the_car_stands_and_nowhere_else() -> None:
    stands = msgspec.structs.replace(grant(), halted=(0, 0))
    assert at_the_door(seeker(claims={"car-9": CLAIM}, grants={"car-9": stands})) == "car-9"
    far = seeker(claims={"car-9": CLAIM}, grants={"car-9": stands}, position=(90.0, 0.0))
    assert at_the_door(far) == ""
    assert at_the_door(seeker(claims={"car-9": CLAIM}, grants={"car-9": grant()})) == ""


def test_who_sits_in_one_car_gives_up_the_other() -> None:
    claims = {"car-9": CLAIM, "car-1": Claim(2, 1, (0, 0), (500, 0))}
    one = seeker(claims=claims, grants={"car-9": grant(is_aboard=True)}, made_ms={2: 20_000})
    assert vehicle_aboard(one) == "car-9"
    assert given_up(one) == ["car-1"]


# --- who is there, and what is seen of them ---


def test_the_cast_depends_on_its_seed_alone() -> None:
    cast = CastSettings(seed=4, people=30)
    streets = make_town(cast)
    parts = draw_cast(cast, streets)
    assert parts == draw_cast(cast, make_town(cast))
    assert len({part.name for part in parts}) == 8 + 1 + 30
    assert parts != draw_cast(CastSettings(seed=5, people=30), streets)


def test_what_cannot_be_read_is_not_shown() -> None:
    watcher = Watcher(ROW)
    foreign = Knowledge("odd", "n", ("SeatOffering",), 1, 1, {"position": "nowhere"})
    other = Knowledge("lamp", "n", ("Lamp",), 1, 1, {"position": [0, 0]})
    assert watcher.look([foreign, other], 0.0) == []
    assert watcher.picture().things == ()


@pytest.mark.parametrize("stop", [0, 1])
def test_a_bus_goes_round_also_where_a_map_has_two_places_within_a_metre(stop: int) -> None:
    streets = StreetMap([(0, 0), (0.2, 0), (500, 0)], [Street(0, 1, 10.0), Street(1, 2, 10.0)])
    time_ms = [0.0]
    town = Town(streets, lambda: time_ms[0], Chance(1))
    bus = make_bus("bus", town, [stop, 2], seats=20)
    host = Host("bus", [], Chance(1))
    host.add(bus, Now(0, 0.0))
    seen = set()
    for number in range(1, 400):
        time_ms[0] = number * 500.0
        host.run(Now(number * 500, time_ms[0]))
        seen.add(bus.position)
    assert list(host.faults) == []
    assert (500.0, 0.0) in seen
