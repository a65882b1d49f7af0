"""Car sharing on real nodes, over UDP of this machine, and its command. [EN-13]"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from rapport.cli.main import run as rapport
from rapport.core.errors import InvalidInput, Unsupported
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.kernel.clock import Chance, SystemClock
from rapport_lab.car_sharing.cast import CastSettings, draw_cast, make_town
from rapport_lab.car_sharing.map_watcher import Watcher
from rapport_lab.car_sharing.play import PlayOptions, play
from rapport_lab.car_sharing.socket_world import Meeting, free_group, observing, opened_parts


async def until(holds: Callable[[], bool], seconds: float = 50) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - of real nodes, which tell nobody
            await asyncio.sleep(0.02)


SMALL = CastSettings(cars=8, buses=1, people=9, side_metres=1_200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_on_ip", "processes"), [(False, 1), (True, 1), (False, 2)], ids=["radio", "ip", "processes"]
)
def test_people_get_seats_on_real_nodes(is_on_ip: bool, processes: int) -> None:
    options = PlayOptions(
        cast=SMALL, minutes=1, speed=15, is_on_ip=is_on_ip, processes=processes, port=None
    )
    told: list[str] = []

    async def scenario() -> None:
        playing = asyncio.create_task(
            play(options, SystemClock(), lambda one: told.append(one.text), told.append)
        )
        await until(lambda: any(" gives " in text for text in told) or playing.done())
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)

    asyncio.run(scenario())
    assert any(" gives " in text for text in told), told


@pytest.mark.slow
def test_who_is_switched_off_disappears_from_the_map() -> None:
    async def scenario() -> None:
        clock, chance = SystemClock(), Chance(1)
        streets = make_town(SMALL)
        parts = draw_cast(SMALL, streets)[:2]
        meeting = Meeting(free_group(), host=HostSettings(replica_ms=1_500))
        watcher = Watcher(streets)
        async with (
            opened_parts(parts, streets, meeting, clock, chance, pace=10) as nodes,
            observing(meeting, clock, chance) as observer,
        ):
            await until(lambda: len(observer.knowledge()) == 2)
            watcher.look(observer.knowledge(), 0.0)
            await nodes[0].close()
            await until(lambda: len(observer.knowledge()) == 1)
            told = [one.text for one in watcher.look(observer.knowledge(), 1.0)]
            assert told == ["car-1 is not heard any more"]
            assert [thing.id for thing in watcher.picture().things] == ["car-2"]

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_map_of_a_play_is_served_while_it_is_played() -> None:
    options = PlayOptions(cast=SMALL, minutes=0.05, speed=10, is_simulated=True, port=0)

    async def scenario() -> None:
        said: list[str] = []
        playing = asyncio.create_task(play(options, SystemClock(), lambda _one: None, said.append))
        await until(lambda: bool(said))
        url = said[0].split()[4]
        async with httpx2.AsyncClient() as client:
            things: list[object] = []
            while not things:
                things = (await client.get(f"{url}/picture")).json()["things"]
            assert len(things) == 18
            assert (await client.get(f"{url}/ground")).json()["streets"]
        watcher = await playing
        assert watcher.picture().is_over

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_command_tells_what_happens_and_what_came_of_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    few = ["--cars", "3", "--people", "3", "--minutes", "0.1", "--speed", "20"]
    assert rapport(["ensemble", "cars", "--simulated", "--no-page", "--json", *few]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert set(lines[-1]["counts"]) >= {"rides", "refused", "missed", "lost"}
    assert all({"number", "time_ms", "text"} == set(line) for line in lines[:-1])


def test_what_cannot_be_played_is_refused() -> None:
    for cast in ({"cars": -1}, {"cars": 0, "buses": 0, "people": 0}, {"people": 10_000}):
        with pytest.raises(InvalidInput) as caught:
            CastSettings(**cast)
        assert caught.value.code == "cars.bad_cast"
    for options in ({"speed": 0}, {"minutes": -1}, {"processes": 0}, {"processes": 99}):
        with pytest.raises(InvalidInput) as caught:
            PlayOptions(**options)
        assert caught.value.code == "cars.bad_options"
    with pytest.raises(Unsupported):
        PlayOptions(processes=2, is_simulated=True)
    assert rapport(["ensemble", "cars", "--speed", "0"]) == 2
    assert rapport(["ensemble", "cars", "--streets", "nowhere.geojson", "--no-page"]) == 2


def line(points: list[list[float]], **properties: object) -> dict[str, object]:
    geometry = {"type": "LineString", "coordinates": points}
    return {
        "type": "Feature",
        "geometry": geometry,
        "properties": {"highway": "primary", **properties},
    }


def written(path: Path, features: list[dict[str, object]]) -> Path:
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def test_streets_of_a_file_are_played_on_and_too_few_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    square = [[13.40, 52.50], [13.41, 52.50], [13.41, 52.51], [13.40, 52.51], [13.40, 52.50]]
    good = written(tmp_path / "good.geojson", [line(square)])
    few = ["--cars", "2", "--people", "2", "--minutes", "0.02", "--simulated", "--no-page"]
    assert rapport(["ensemble", "cars", "--streets", str(good), *few]) == 0
    lonely = written(tmp_path / "lonely.geojson", [line(square[:2], oneway="yes")])
    assert rapport(["ensemble", "cars", "--streets", str(lonely), *few]) == 2
    assert "joined" in capfd.readouterr().err
