"""`rapport replay --from-log`: the site's own log, found by time, beside a node that writes it.
[PO-8, UX-3]
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.channel import Channels
from rapport.cli.main import run
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.release import CORRECTS, RELEASE_DONE, RELEASED, RELEASES, ReleaseDone
from rapport.kernel.clock import ManualClock
from rapport.policy.replay.log_replay import LogReplay
from rapport.policy.replay.replay import ReplayResult
from rapport.site.site import load_site

Bytes = pytest.CaptureFixture[bytes]
DAY = 86_400_000
BEGIN = 1_767_225_600_000  # 2026-01-01
SITE = """
[concepts.station.attributes]
place = "text"
temperature = "number"
[concepts.station.units]
temperature = "degC"
[tables.stations]
concept = "station"
csv = "stations.csv"
key = "id"
columns = { place = "place" }
[sources.masts]
concept = "station"
attribute = "temperature"
key = "id"
value = "celsius"
[peers.chief]
addresses = ["inbox:"]
[actions."call"]
send_to = "peer:chief"
text = "hot"
"""
HOT = """concepts
  station S
conditions
  temperature of S above 30 degC
  {more}
actions
  call
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "stations.csv").write_text("id,place\nhill,hill\n")
    (tmp_path / "hot.dpl").write_text(HOT.format(more="within 5 s"))
    return tmp_path


def reading(id: str, time: int, celsius: float, **headers: str) -> Event:
    data = msgspec.json.encode({"key": "hill", "value": [celsius]})
    return Event("masts", id, "station.temperature", "station/hill", time, data, headers)


async def fill(channels: Channels, clock: ManualClock, events: Sequence[Event]) -> None:
    """Each is received as it happens."""
    for event in events:
        await clock.advance(max(event.time - clock.now_ms(), 0))
        await channels.channel("events").append([event])


def hourly(days: int) -> list[Event]:
    """Hot at noon of each day."""
    return [
        reading(f"e{hour}", BEGIN + hour * 3_600_000, 35.0 if hour % 24 == 12 else 20.0)
        for hour in range(days * 24)
    ]


def times(raw: bytes) -> list[int]:
    return [json.loads(line)["time"] for line in raw.splitlines()]


def noon(day: int) -> int:
    return BEGIN + (day - 1) * DAY + DAY // 2


def test_the_log_is_replayed_beside_the_node_that_writes_it(
    site: Path, capsysbinary: Bytes
) -> None:
    async def scenario() -> None:
        clock = ManualClock(BEGIN)
        channels = open_embedded(load_site(site).data_directory / "log", clock)
        await fill(channels, clock, hourly(4))
        asked = ["replay", "--site", str(site), "--from-log"]
        assert await asyncio.to_thread(run, asked) == 0
        assert times(capsysbinary.readouterr().out) == [noon(day) for day in (1, 2, 3, 4)]
        part = ["--since", "2026-01-02", "--until", "2026-01-03T12:00:00Z"]
        assert await asyncio.to_thread(run, [*asked, *part]) == 0
        assert times(capsysbinary.readouterr().out) == [noon(2)]
        assert await asyncio.to_thread(run, [*asked, "--readable", *part]) == 0
        shown = capsysbinary.readouterr().out.decode()
        assert "temperature of hill = 35 degC" in shown
        assert "36 events, 2026-01-02 00:00:00 to 2026-01-03 11:00:00 (UTC)" in shown
        await channels.close()

    asyncio.run(scenario())


def test_files_and_log_give_the_same_detections(
    tmp_path: Path, checks: Path, capsysbinary: Bytes
) -> None:
    site = Path(shutil.copytree(checks / "secure-building", tmp_path / "site"))
    rows = (site / "events.csv").read_text().splitlines()
    names = rows[0].split(",")
    loaded = load_site(site)
    source = loaded.ontology.sources["positions"]

    def event(line: str) -> Event:
        row = dict(zip(names, line.split(","), strict=True))
        value = [float(row[field]) for field in source.value]
        data = msgspec.json.encode({"key": row[source.key], "value": value})
        return Event("positions", row[source.id], source.stream, "", int(row[source.time]), data)

    async def scenario() -> None:
        clock = ManualClock(int(rows[-1].split(",")[names.index(source.time)]))
        channels = open_embedded(loaded.data_directory / "log", clock)
        await channels.channel("events").append([event(line) for line in rows[1:]])
        await channels.close()

    asyncio.run(scenario())
    assert run(["replay", "--site", str(site), "--from-log"]) == 0
    assert capsysbinary.readouterr().out == (site / "expected.jsonl").read_bytes()


async def replayed(
    site: Path, channels: Channels, since: int | None, until: int, *, is_open: bool = False
) -> ReplayResult:
    loaded = load_site(site)
    log = LogReplay(
        channels,
        loaded.ontology,
        loaded.tables,
        lateness_ms=loaded.lateness_ms,
        skew_ms=60_000,
        since=since,
        until=until,
        is_open=is_open,
    )
    return await log.run([one.plan for one in loaded.policies.values()])


def test_only_the_part_of_the_log_that_matters_is_read(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        clock = ManualClock(BEGIN)
        channels = open_memory(clock)
        await fill(channels, clock, hourly(60))
        channel = channels.channel("events")
        seen: set[int] = set()
        read_after = type(channel).read_after

        async def watched(self: object, position: int, *, limit: int = 1000) -> list[StoredEvent]:
            found: list[StoredEvent] = await read_after(self, position, limit=min(limit, 50))
            seen.update(one.position for one in found)
            return found

        monkeypatch.setattr(type(channel), "read_after", watched)
        result = await replayed(site, channels, BEGIN + 30 * DAY, BEGIN + 31 * DAY)
        assert [one.time for one in result.detections] == [noon(31)]
        assert result.events == 24
        assert len(seen) < 150  # of 1,440: what is asked for, two pages around it, a few to find it
        await channels.close()

    asyncio.run(scenario())


def test_of_a_corrected_reading_the_newest_counts_however_late_it_came(site: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(BEGIN)
        channels = open_memory(clock)
        await fill(channels, clock, hourly(10))
        await channels.channel("events").append(
            [
                reading("c1", noon(2), 20.0, **{CORRECTS: "e36", RELEASED: str(clock.now_ms())}),
                reading("c2", noon(2) + 3_600_000, 36.0, **{CORRECTS: "e37", RELEASED: "1"}),
            ]
        )
        done = ReleaseDone(
            release="r1",
            streams=["station.temperature"],
            first_ms=noon(2),
            last_ms=noon(2) + 3_600_000,
            through=channels.channel("events").last_position(),
        )
        data = msgspec.json.encode(done)
        await channels.channel(RELEASES).append(
            [Event("mediation", "r1", RELEASE_DONE, "", 0, data)]
        )
        result = await replayed(site, channels, BEGIN + DAY, BEGIN + 2 * DAY)
        assert [(one.time, one.causes) for one in result.detections] == [
            (noon(2) + 3_600_000, ((noon(2) + 3_600_000, "c2"),))
        ]
        await channels.close()

    asyncio.run(scenario())


def test_a_log_that_was_filled_later_is_looked_at_as_a_whole(site: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock(BEGIN + 400 * DAY))
        await channels.channel("events").append(hourly(4))
        result = await replayed(site, channels, BEGIN + DAY, BEGIN + 2 * DAY)
        assert [one.time for one in result.detections] == [noon(2)]
        await channels.close()

    asyncio.run(scenario())


def test_time_does_not_run_on_past_the_end(site: Path) -> None:
    (site / "hot.dpl").write_text(
        HOT.format(more="").replace("temperature of S above 30 degC", "no event of S for 3 hours")
    )

    async def scenario() -> None:
        clock = ManualClock(BEGIN)
        channels = open_memory(clock)
        await fill(channels, clock, hourly(1))
        soon = BEGIN + 24 * 3_600_000
        result = await replayed(site, channels, None, soon, is_open=True)
        assert result.detections == []
        result = await replayed(site, channels, None, soon + 3 * 3_600_000, is_open=True)
        assert [one.time for one in result.detections] == [BEGIN + 26 * 3_600_000]
        await channels.close()

    asyncio.run(scenario())


def test_states_that_began_before_are_told_of(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "hot.dpl").write_text(HOT.format(more="").replace("30 degC", "30 degC for 1 min"))

    async def scenario() -> None:
        clock = ManualClock(BEGIN)
        channels = open_embedded(load_site(site).data_directory / "log", clock)
        await fill(channels, clock, hourly(3))
        await channels.close()

    asyncio.run(scenario())
    assert run(["replay", "--site", str(site), "--from-log", "--since", "2026-01-02"]) == 0
    said = capsys.readouterr()
    assert "what was so long before" in said.err
    assert said.out.count("hot") == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--from-log", "--events", "x.csv"), "cli.wrong_use"),
        (("--from-log", "--engine", "spark"), "cli.wrong_use"),
        (("--from-log", "--resume"), "cli.wrong_use"),
        (("--since", "2026-01-01"), "cli.wrong_use"),
        (("--from-log", "--since", "soon"), "time.bad_time"),
        (("--from-log",), "channel.no_log"),
    ],
)
def test_what_does_not_go_together_is_refused(
    site: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: str
) -> None:
    assert run(["replay", "--site", str(site), *arguments]) == 2
    assert code in capsys.readouterr().err


def test_a_stretch_that_ends_before_it_begins_is_refused(site: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock(BEGIN))
        await channels.channel("events").append(hourly(1)[:1])
        with pytest.raises(InvalidInput) as refused:
            await replayed(site, channels, BEGIN, BEGIN)
        assert refused.value.code == "replay.bad_span"
        await channels.close()

    asyncio.run(scenario())
