"""The report counts what the lake holds and joins a delivery to the reading behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.detection import Detection
from rapport.core.errors import Corrupt
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels
from rapport.lake.places import Lake
from rapport.pipeline.figures import reports
from rapport.pipeline.figures.reports import Report, current_report, make_report
from rapport.pipeline.figures.rows import (
    DeliveryCount,
    LateCount,
    MessageCount,
    PolicyCount,
    ReasonCount,
    SensorToPhone,
    Spread,
)
from rapport.pipeline.figures.text import headline_text, report_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

GUEST = Detection(
    policy="alone", time=6_004, bindings={"A": "1"}, causes=((1_003, "e3"), (1_004, "e4"))
)
LOST = Detection(policy="lost", time=9_000, bindings={"A": "2"}, causes=((1_001, "gone"),))


class Crash(Exception):
    """Stands for the end of the process at this point."""


def event(kind: str, id: str, time: int, cause: str = "", subject: str = "", **data: Any) -> Event:
    headers = {"cause": cause} if cause else {}
    return make_event(
        source="s", id=id, type=kind, time=time, subject=subject, data=data, headers=headers
    )


def message(id: str, time: int, found: Detection) -> Event:
    origin = {"policy": found.policy, "detection": found.id()}
    return event("rapport.message", id, time, found.id(), **origin)


def line(state: str, time: int, message: str = "m1", **data: Any) -> Event:
    """One line of the ledger."""
    return event(
        f"rapport.delivery.{state}", f"{message}-{time}-{state}", time, subject=message,
        message=message, **data,
    )  # fmt: skip


MAIL = {"peer": "ana", "address": "mail:ana@example.org", "adapter": "mail"}
HOOK = {"peer": "ben", "address": "webhook:http://ben", "adapter": "webhook"}


async def walk(channels: Channels, clock: ManualClock) -> None:
    """Ten readings, two detections, two messages of which one is answered, two left out."""

    async def at(time_ms: int, channel: str, *events: Event) -> None:
        clock.set_ms(time_ms)
        await channels.channel(channel).append(events)

    for n in range(10):
        await at(1_100 + n, "raw.badges", event("badge", f"e{n}", 1_000 + n))
        await at(1_150 + n, "events", event("person.position", f"e{n}", 1_000 + n, f"e{n}"))
    await at(1_200, "quarantine", event("rapport.mediation.rejected", "q1", 1, reason="no.unit"))
    await at(1_201, "quarantine", event("rapport.mediation.rejected", "q2", 1, reason="no.unit"))
    await at(1_202, "detections", event("rapport.policy.late", "l1", 1))
    await at(6_010, "detections", GUEST.to_event(source="site"))
    await at(6_020, "log", message("m1", 6_020, GUEST))
    await at(6_021, "log", line("queued", 6_021, **MAIL), line("queued", 6_021, "m1b", **HOOK))
    await at(6_050, "log", line("handed", 6_050, attempt=1, **MAIL))
    await at(6_060, "log", line("failed", 6_060, attempt=1, **HOOK))
    await at(6_104, "log", line("confirmed", 6_104, attempt=2, **HOOK))
    await at(7_000, "log", line("answered", 7_000, peer="ana", answer="going"))
    await at(7_001, "log", line("closed", 7_001, result="done"))
    await at(9_010, "detections", LOST.to_event(source="site"))
    await at(9_020, "log", message("m2", 9_020, LOST))
    await at(9_030, "log", line("handed", 9_030, "m2", attempt=1, **MAIL))
    unmapped = line("failed", 9_040, "m3", reason="action.unmapped: the site has no such action")
    await at(9_040, "log", unmapped)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lake")

    async def fill() -> None:
        clock = ManualClock()
        channels = open_memory(clock)
        await walk(channels, clock)
        # Somebody else's event with the same id, long after the detection: not its cause.
        clock.set_ms(50_000)
        other = make_event(source="other", id="e4", type="person.position", time=40_000)
        await channels.channel("events").append([other])
        await export_channels(channels, directory)

    asyncio.run(fill())
    return directory


@pytest.fixture(scope="module")
def report(spark: SparkSession, lake: Path) -> Report:
    return make_report(spark, lake)


def test_what_happened_is_counted(report: Report) -> None:
    assert report.readings == 11
    assert report.late == 1
    assert report.late_readings == (LateCount("", 1, 1, 1),)
    assert report.quarantined == (ReasonCount("no.unit", "", "", "mediation", 2, 2, 1_200, 1_201),)
    assert report.detections == (
        PolicyCount("alone", 1, 0, 0, 6_004, 6_004),
        PolicyCount("lost", 1, 0, 0, 9_000, 9_000),
    )


def test_a_delivery_counts_in_its_newest_state(report: Report) -> None:
    assert report.deliveries == (
        DeliveryCount("mail", "handed", 2),
        DeliveryCount("webhook", "confirmed", 1),
        DeliveryCount("webhook", "queued", 1),
    )


def test_messages_count_by_how_they_ended(report: Report) -> None:
    assert report.messages == (
        MessageCount("done", 1),
        MessageCount("open", 2),
        MessageCount("unmapped", 1),
    )
    assert report.answered == 1


def test_a_funnel_counts_every_step_by_its_own_evidence(report: Report) -> None:
    rows = {row.policy: row for row in report.funnel}
    alone, lost, unnamed = rows["alone"], rows["lost"], rows[""]  # lines that name no policy
    assert (alone.detected, alone.with_message, alone.messages, alone.handed) == (1, 1, 1, 1)
    assert (alone.confirmed, alone.answered, alone.done, alone.open) == (1, 1, 1, 0)
    assert (lost.messages, lost.handed, lost.confirmed, lost.open) == (1, 1, 0, 1)
    assert (unnamed.messages, unnamed.missing, unnamed.unmapped, unnamed.handed) == (1, 1, 1, 0)


def test_a_person_answers_after_the_first_medium_that_took_it(report: Report) -> None:
    rows = {row.peer: row for row in report.peers}
    assert rows["ana"].response == Spread(1, 950, 950, 950, 950)
    assert (rows["ana"].asked, rows["ana"].reached, rows["ana"].answered) == (2, 2, 1)
    assert (rows["ben"].asked, rows["ben"].reached, rows["ben"].unreached) == (2, 1, 1)
    assert rows["ben"].response is None
    adapters = {row.adapter: row for row in report.adapters}
    assert (adapters["webhook"].reached, adapters["webhook"].confirmed) == (1, 1)
    assert (adapters["webhook"].attempts, adapters["webhook"].failed_attempts) == (2, 1)
    assert adapters["mail"].handing == Spread(1, 29, 29, 29, 29)


def test_the_time_from_sensor_to_phone_begins_at_the_last_reading(report: Report) -> None:
    # e4 was at the door at 1,104 and certain at 6,004; mail took it at 6,050, the webhook at 6,104.
    assert report.sensor_to_phone == (
        SensorToPhone(
            "alone",
            2,
            from_door=Spread(2, 4_946, 5_000, 5_000, 5_000),
            after_due=Spread(2, 46, 100, 100, 100),
        ),
    )


def test_the_result_tables_stay_in_the_lake(report: Report, lake: Path) -> None:
    rows = Lake.at(lake).open("gold", "sensor_to_phone").read().to_pylist()
    assert [(row["message"], row["peer"], row["received_at"]) for row in rows] == [
        ("m1", "ana", 1_104),
        ("m1", "ben", 1_104),
        ("m2", "ana", None),
    ]


def test_without_anything_new_the_report_is_read_without_spark_and_nothing_is_written(
    spark: SparkSession, report: Report, lake: Path
) -> None:
    place = Lake.at(lake)
    before = {name: place.open("gold", name).version for name in place.names("gold")}
    assert current_report(lake) == report
    assert make_report(spark, lake) == report
    assert {name: place.open("gold", name).version for name in place.names("gold")} == before


def test_the_report_reads_as_text(report: Report) -> None:
    tables = report_tables(report)
    spread = ("2", "46 ms", "100 ms", "100 ms", "100 ms")
    assert ("alone", "certainty", *spread) in tables["sensor_to_phone"].rows
    assert any(row[0] == "no.unit" and row[4] == "2" for row in tables["quarantine"].rows)


def test_the_headline_figures_fit_a_screen(report: Report) -> None:
    lines = headline_text(report).splitlines()
    assert " events received from 1970-01-01 00:00 to " in lines[0]
    assert lines[1].split()[0] == "readings"
    assert len(lines) <= 16
    assert max(map(len, lines)) <= 80


def test_only_tables_that_rest_on_something_new_are_computed_and_a_kill_is_made_good(
    spark: SparkSession, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels, place = open_memory(clock), Lake.at(tmp_path)

    async def receive(channel: str, *events: Event) -> None:
        await channels.channel(channel).append(events)
        await export_channels(channels, tmp_path)

    asyncio.run(receive("detections", GUEST.to_event(source="site")))
    make_report(spark, tmp_path)
    before = {name: place.open("gold", name).version for name in place.names("gold")}
    asyncio.run(receive("events", event("person.position", "e4", 1_004)))

    def killed(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(reports, "_totals", killed)  # facts and tables are there, the mark is not
        with pytest.raises(Crash):
            make_report(spark, tmp_path)
    assert current_report(tmp_path) is None
    assert make_report(spark, tmp_path).readings == 1
    after = {name: place.open("gold", name).version for name in place.names("gold")}
    assert {name for name in before if before[name] == after[name]} >= {
        "detections", "peers", "deliveries", "messages", "funnel", "provenance", "quarantine",
    }  # fmt: skip
    assert after["channels"] > before["channels"]


def test_an_empty_lake_gives_an_empty_report(spark: SparkSession, tmp_path: Path) -> None:
    report = make_report(spark, tmp_path)
    assert (report.readings, report.detections, report.deliveries) == (0, (), ())
    assert headline_text(report).startswith("The lake is empty.\n")


def test_a_damaged_file_ends_the_report_with_its_name(
    spark: SparkSession, clock: ManualClock, tmp_path: Path
) -> None:
    async def fill() -> None:
        channels = open_memory(clock)
        await channels.channel("detections").append([GUEST.to_event(source="site")])
        await export_channels(channels, tmp_path)

    asyncio.run(fill())
    (path,) = tmp_path.rglob("*.parquet")
    path.write_bytes(b"PAR1" + bytes(200) + b"PAR1")
    with pytest.raises(Corrupt, match=path.name):
        make_report(spark, tmp_path)
