"""The scenes of the secure building as pure data: who is where when, and what each sensor says of
it. [PO-17]

Every scene plays in a room of its own, so all play at once. `EXPECTED` is what a careful person
would raise an alarm about, `EXPECTED_UNDECIDED` what nobody can tell; everything else must stay
quiet.
"""

from __future__ import annotations

import csv
import math
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec

SITE = Path(__file__).parent / "site"
FEET_PER_METRE = 1 / 0.3048
_ZONE = ZoneInfo("Europe/Berlin")
_BEGINNING = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))

Sensor = Literal["badge", "gate", "camera", "door"]

EXPECTED: tuple[tuple[str, str], ...] = (
    ("p03", "server-room"),
    ("p05", "hall"),
    ("p06", "archive"),
)
"""Guest and room of each alarm."""

EXPECTED_UNDECIDED: tuple[tuple[str, str, tuple[str, ...]], ...] = (("p08", "depot", ("gate",)),)
"""Guest, room and silent sources where nobody can tell."""


class Sighting(msgspec.Struct, frozen=True):
    """Somebody is at a place; `delay_ms` later the sensor's report arrives."""

    at_ms: int
    person: str
    x: float
    y: float
    sensor: Sensor = "badge"
    delay_ms: int = 40


class BuildingReport(msgspec.Struct, frozen=True):
    """What a sensor sends, and when it arrives."""

    arrives_ms: int
    source: str
    payload: dict[str, Any] | str


class BuildingScene(msgspec.Struct, frozen=True):
    """A small story with the verdict it deserves."""

    title: str
    verdict: str
    sightings: tuple[Sighting, ...]


def scenes() -> tuple[BuildingScene, ...]:
    """All scenes; times count from the beginning of the play."""
    return (
        BuildingScene("an escorted guest in the lab", "nothing", _escorted()),
        BuildingScene(
            "the employee leaves the vault for 4 s",
            "nothing",
            _stepping_out("p02", "p12", 15, 3_200, 7_200),
        ),
        BuildingScene(
            "the employee leaves the server room for 6 s",
            "alarm",
            _stepping_out("p03", "p13", 27, 2_200, 8_200),
        ),
        BuildingScene(
            "two guests in the hall, an employee near one", "alarm for the other", _two_guests()
        ),
        BuildingScene("the employee is near, but behind the wall", "alarm", _behind_the_wall()),
        BuildingScene("the camera reports 3 s late and out of order", "nothing", _late_camera()),
        BuildingScene("only the door's log has seen the employee come in", "nothing", _let_in()),
        BuildingScene(
            "the depot's reader dies, then a guest is seen there", "undecided", _dead_reader()
        ),
    )


def reports(start_ms: int) -> list[BuildingReport]:
    """Everything the sensors send, in order of arrival, for a play that starts at `start_ms`."""
    sent = [_report(start_ms, sighting) for scene in scenes() for sighting in scene.sightings]
    sent.append(
        BuildingReport(start_ms + 1_000, "oldcam", {"cam": "x1", "distance": 12.4, "seen": "p05"})
    )
    return sorted(sent, key=lambda report: (report.arrives_ms, report.source, str(report.payload)))


def _every_second(
    person: str,
    x: float,
    y: float,
    *,
    start: int,
    end: int,
    sensor: Sensor = "badge",
    delay: int = 40,
) -> tuple[Sighting, ...]:
    return tuple(Sighting(at, person, x, y, sensor, delay) for at in range(start, end + 1, 1_000))


def _escorted() -> tuple[Sighting, ...]:
    return _every_second("p01", 3, 4, start=0, end=9_000) + _every_second(
        "p11", 4.5, 4, start=200, end=9_200
    )


def _stepping_out(
    guest: str, employee: str, x: float, leaves: int, returns: int
) -> tuple[Sighting, ...]:
    """The employee is beside the guest, then in the lobby, then back; the guest stays."""
    inside = _every_second(employee, x + 1, 4, start=200, end=leaves)
    away = _every_second(employee, 20, 28, start=leaves + 1_000, end=returns - 1_000)
    back = _every_second(employee, x + 1, 4, start=returns, end=9_200)
    return _every_second(guest, x, 4, start=0, end=9_000) + inside + away + back


def _two_guests() -> tuple[Sighting, ...]:
    near = _every_second("p04", 3, 16, start=0, end=9_000)
    employee = _every_second("p14", 4, 16, start=200, end=9_200)
    strays = (
        Sighting(2_500, "p05", 25, 28),
        Sighting(3_500, "p05", 15, 16),
        Sighting(4_500, "p05", 25, 28),
    )
    return near + employee + strays


def _behind_the_wall() -> tuple[Sighting, ...]:
    guest = (Sighting(2_000, "p06", 31, 16), Sighting(3_000, "p06", 20, 28))
    return guest + _every_second("p16", 33, 16, start=0, end=9_000)


def _late_camera() -> tuple[Sighting, ...]:
    guest = _every_second("p07", 3, 28, start=0, end=8_000)
    camera = _every_second("p17", 4, 29, start=200, end=8_200, sensor="camera", delay=3_000)
    # Every second report overtakes the one before it.
    hurried = tuple(
        msgspec.structs.replace(sighting, delay_ms=1_500) if place % 2 else sighting
        for place, sighting in enumerate(camera)
    )
    return guest + hurried


def _let_in() -> tuple[Sighting, ...]:
    """The guest is seen in the workshop once; 3 s later an employee opens its door from inside."""
    guest = (Sighting(2_000, "p09", 17, 41), Sighting(3_000, "p09", 20, 28))
    return (*guest, Sighting(5_000, "p19", *_doors()["d1"], "door", 900))


def _dead_reader() -> tuple[Sighting, ...]:
    """The reader promises to be heard every 3 s; the employee it last saw may still be there."""
    employee = _every_second("p18", 4, 40, start=0, end=9_000, sensor="gate")
    return (*employee, Sighting(9_500, "p08", 5, 40, "camera"))


def _report(start_ms: int, sighting: Sighting) -> BuildingReport:
    arrives = start_ms + sighting.at_ms + sighting.delay_ms
    if sighting.sensor == "camera":
        return BuildingReport(arrives, "cameras", _camera_payload(start_ms, sighting))
    if sighting.sensor == "door":
        return BuildingReport(arrives, "doors", _door_line(start_ms, sighting))
    source = "gate" if sighting.sensor == "gate" else "readers"
    return BuildingReport(arrives, source, _badge_payload(start_ms, sighting))


def _badge_payload(start_ms: int, sighting: Sighting) -> dict[str, Any]:
    """Metres relative to the nearest reader, the tag instead of the person, ISO time."""
    from rapport.core.times import format_time

    reader = min(
        _sensors("badge reader"), key=lambda s: math.dist(s[1:3], (sighting.x, sighting.y))
    )
    return {
        "reader": reader[0],
        "tag": _tags()[sighting.person],
        "dx": sighting.x - reader[1],
        "dy": sighting.y - reader[2],
        "t": format_time(start_ms + sighting.at_ms),
    }


def _camera_payload(start_ms: int, sighting: Sighting) -> dict[str, Any]:
    """Bearing from the camera's heading, feet, seconds since 1970."""
    camera = min(_sensors("camera"), key=lambda s: math.dist(s[1:3], (sighting.x, sighting.y)))
    dx, dy = sighting.x - camera[1], sighting.y - camera[2]
    bearing = math.degrees(math.atan2(dx, dy)) - camera[3]
    return {
        "cam": camera[0],
        "track": f"t{sighting.at_ms}",
        "face": sighting.person,
        "bearing_deg": bearing,
        "dist_ft": math.hypot(dx, dy) * FEET_PER_METRE,
        "ts": (start_ms + sighting.at_ms) / 1_000,
    }


def _door_line(start_ms: int, sighting: Sighting) -> str:
    """`ts;door;badge;result` by the clock on the wall."""
    places = _doors()
    door = min(places, key=lambda name: math.dist(places[name], (sighting.x, sighting.y)))
    local = (_BEGINNING + timedelta(milliseconds=start_ms + sighting.at_ms)).astimezone(_ZONE)
    return f"{local:%d.%m.%Y %H:%M:%S.%f};{door};{_tags()[sighting.person]};granted"


@cache
def _doors() -> dict[str, tuple[float, float]]:
    with (SITE / "doors.csv").open(encoding="utf-8") as file:
        return {row["id"]: (float(row["x_m"]), float(row["y_m"])) for row in csv.DictReader(file)}


@cache
def _sensors(kind: str) -> tuple[tuple[str, float, float, float], ...]:
    with (SITE / "sensors.csv").open(encoding="utf-8") as file:
        return tuple(
            (row["id"], float(row["x_m"]), float(row["y_m"]), float(row["heading_deg"]))
            for row in csv.DictReader(file)
            if row["kind"] == kind
        )


@cache
def _tags() -> dict[str, str]:
    """Some tag of each person; a person may carry several."""
    with (SITE / "badges.csv").open(encoding="utf-8") as file:
        return {row["person"]: row["tag"] for row in csv.DictReader(file)}
