"""Cars, buses and people in a simulated town: the same components as on sockets. [EN-13]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import dist

import pytest

from rapport.kernel.clock import Chance
from rapport_lab.car_sharing.cast import CastSettings, draw_cast, make_town
from rapport_lab.car_sharing.map_watcher import Watcher
from rapport_lab.car_sharing.pedestrian import Pedestrian, held_by
from rapport_lab.car_sharing.seats import HOLD_MS, KEEP_MS
from rapport_lab.car_sharing.simulated_world import StreetWorld, StreetWorldSettings
from rapport_lab.car_sharing.vehicles import Bus, Vehicle
from rapport_lab.ensemble.simulation.ip_network import IpSettings

pytestmark = pytest.mark.slow


def people_of(world: StreetWorld) -> list[Pedestrian]:
    found = [world.component(name) for name in world.world.names if world.world.is_alive(name)]
    return [one for one in found if isinstance(one, Pedestrian)]


def check_seats(world: StreetWorld) -> int:
    """Nobody holds what another one holds; returns how many seats are held."""
    taken: dict[tuple[str, int], str] = {}
    for person in people_of(world):
        for vehicle, grant in held_by(person.seeker()).items():
            for seat in grant.booking.seats:
                other = taken.setdefault((vehicle, seat), person.id)
                assert other == person.id, f"{other} and {person.id}: seat {seat} of {vehicle}"
    return len(taken)


def troubled_play(seed: int, seconds: int) -> Counter[str]:
    """Few seats for many, while messages are lost and late, nodes die, and the town is parted."""
    chance = Chance(seed)
    cast = CastSettings(cars=3, buses=1, people=9, seed=seed, side_metres=800)
    streets = make_town(cast)
    ip = IpSettings(
        loss=chance.choice([0.0, 0.2, 0.5]), jitter_ms=chance.choice([10.0, 1_000.0, 4_000.0])
    )
    world = StreetWorld(
        streets,
        draw_cast(cast, streets),
        StreetWorldSettings(range_metres=0, ip=ip, seed=seed, pace=10),
    )
    counts: Counter[str] = Counter()
    watcher = Watcher(streets)
    for half in range(2 * seconds):
        world.run(half * 500.0)
        counts["held"] += check_seats(world)
        watcher.look(world.knowledge(), half * 500.0)
        if half % 20 == 19:
            disturb(world, chance)
    for machine in world.machines():
        assert not list(machine.host.faults)
    return counts + watcher.counts


def disturb(world: StreetWorld, chance: Chance) -> None:
    names = world.world.names
    draw, name = chance.random(), chance.choice(names)
    if draw < 0.25:
        world.kill(name)
    elif draw < 0.5:
        dead = [one for one in names if not world.world.is_alive(one)]
        if dead:
            world.revive(chance.choice(dead))
    elif draw < 0.7:
        world.world.part(chance.sample(names, len(names) // 2))
    elif draw < 0.8:
        world.scheduler.set_wall_ms(world.scheduler.now.wall_ms + chance.choice([-60_000, 60_000]))
    else:
        world.world.part()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_two_never_hold_the_same_seat_however_bad_the_network_is(seed: int) -> None:
    assert troubled_play(seed, 60)["held"] > 100


def test_a_vehicle_that_gives_seats_away_too_soon_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rapport_lab.car_sharing.seats.KEEP_MS", 1_500.0)
    with pytest.raises(AssertionError, match="seat"):
        troubled_play(1, 60)


@pytest.mark.long
def test_two_never_hold_the_same_seat_in_many_bad_networks() -> None:
    together: Counter[str] = Counter()
    for seed in range(10, 20):
        together += troubled_play(seed, 120)
    assert together["held"] > 500
    assert together["rides"] > 5


@pytest.fixture(scope="module")
def calm() -> tuple[StreetWorld, Watcher, list[str]]:
    """A minute in a hurried town where nothing goes wrong."""
    cast = CastSettings(seed=1)
    streets = make_town(cast)
    world = StreetWorld(streets, draw_cast(cast, streets), StreetWorldSettings(pace=10))
    watcher = Watcher(streets)
    told: list[str] = []
    for second in range(60):
        world.run(second * 1_000.0)
        check_seats(world)
        told += [one.text for one in watcher.look(world.knowledge(), second * 1_000.0)]
    return world, watcher, told


def test_people_find_cars_and_ride_with_them(calm: tuple[StreetWorld, Watcher, list[str]]) -> None:
    world, watcher, told = calm
    assert watcher.counts["rides"] >= 3
    got_in = [text for text in told if " gets into " in text]
    for text in got_in:
        person, vehicle = text.split(" gets into ")
        asked, given = f"{person} asks {vehicle} for a seat", f"{vehicle} gives {person} seat"
        steps = [
            next(n for n, one in enumerate(told) if one.startswith(word)) for word in (asked, given)
        ]
        assert max(steps) < told.index(text)
    assert any(" gets off " in text for text in told)
    assert any(text.endswith(" gets into bus-1") for text in told)
    for machine in world.machines():
        assert not list(machine.host.faults)


def test_a_bus_stops_at_its_check_points_only(
    calm: tuple[StreetWorld, Watcher, list[str]],
) -> None:
    bus = calm[0].component("bus-1")
    assert isinstance(bus, Bus)
    assert len(bus.line) == 6
    assert {(east, north) for east, north, _there in bus.way} <= set(bus.line)
    times = [there for _east, _north, there in bus.way]
    assert times == sorted(times)
    assert bus.capacity == 20


def test_the_map_shows_everybody_where_they_are(
    calm: tuple[StreetWorld, Watcher, list[str]],
) -> None:
    world, watcher, _told = calm
    picture, ground = watcher.picture(), watcher.ground()
    assert {thing.id for thing in picture.things} == set(world.world.names)
    for thing in picture.things:
        assert ground.west <= thing.east <= ground.east
        assert ground.south <= thing.north <= ground.north
        assert thing.says
    assert len(ground.streets) == len(world.streets.streets)


def played_until(
    is_wanted: Callable[[Pedestrian], bool],
) -> tuple[StreetWorld, Watcher, Pedestrian]:
    """A town at the moment when somebody is as it is wanted."""
    cast = CastSettings(seed=1)
    streets = make_town(cast)
    world = StreetWorld(streets, draw_cast(cast, streets), StreetWorldSettings(pace=10))
    watcher = Watcher(streets)
    for second in range(60):
        world.run(second * 1_000.0)
        watcher.look(world.knowledge(), second * 1_000.0)
        for person in people_of(world):
            if is_wanted(person):
                return world, watcher, person
    raise AssertionError("nobody ever was")


def test_who_is_gone_is_forgotten_and_its_seat_is_given_to_others() -> None:
    world, watcher, person = played_until(lambda one: bool(held_by(one.seeker())))
    rider = person.id
    (name,) = held_by(person.seeker())
    vehicle = world.component(name)
    assert isinstance(vehicle, Vehicle)
    world.kill(rider)
    world.run(world.scheduler.time_ms + KEEP_MS + 8_000)
    assert rider not in vehicle.bookings
    lost = [one.text for one in watcher.look(world.knowledge(), 0.0)]
    assert f"{rider} is not heard any more" in lost
    for machine in world.machines():
        assert rider not in machine.host.replicas


def test_who_sits_in_a_car_that_dies_gets_out_and_walks_on() -> None:
    world, _watcher, person = played_until(lambda one: bool(one.rides))
    vehicle = person.rides
    car = world.component(vehicle)
    assert isinstance(car, Vehicle)
    assert dist(person.position, car.position) < 300  # it hears a little late where the car is
    world.kill(vehicle)
    before = person.position
    world.run(world.scheduler.time_ms + HOLD_MS + 3_000)
    assert person.rides != vehicle
    assert vehicle not in person.claims
    world.run(world.scheduler.time_ms + 5_000)
    assert person.position != before
