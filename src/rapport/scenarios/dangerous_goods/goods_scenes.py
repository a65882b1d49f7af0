"""The scenes of the dangerous goods as pure data: what stands where on which truck, and what the
tracker says of it. [PO-17]

Every scene plays on trucks of its own, so all play at once. `EXPECTED` is what headquarters must
be told; everything else must stay quiet.
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
INCHES_PER_METRE = 1 / 0.0254
SECONDS = 6
"""Every item is seen once in each second of the play."""

_ZONE = ZoneInfo("Europe/Berlin")
_BEGINNING = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))

Tracker = Literal["tags", "poles"]

EXPECTED: tuple[tuple[str, str, str, str], ...] = (
    ("dangerous-goods", "acid-2", "acetone-2", "t2"),
    ("never-together", "detonators-7", "fireworks-7", "t7"),
)
"""Policy, the two items, and the truck of everything that is told, once."""


class Item(msgspec.Struct, frozen=True):
    """Something on a truck: metres from the left rear corner, to the right and to the front."""

    name: str
    truck: str
    x: float
    y: float
    tracker: Tracker = "tags"


class GoodsScene(msgspec.Struct, frozen=True):
    """Items that stand somewhere, with the verdict they deserve."""

    title: str
    verdict: str
    items: tuple[Item, ...]


class GoodsReport(msgspec.Struct, frozen=True):
    """What a tracker sends, and when it arrives."""

    arrives_ms: int
    source: str
    payload: dict[str, Any]


def scenes() -> tuple[GoodsScene, ...]:
    return (
        GoodsScene(
            "ammonia and chlorine 4 m apart, 3 m are asked for",
            "nothing",
            (Item("ammonia-1", "t1", 0.5, 1.0), Item("chlorine-1", "t1", 0.5, 5.0, "poles")),
        ),
        GoodsScene(
            "acid and acetone 1.5 m apart, 2.4 m are asked for; water beside them",
            "told once",
            (
                Item("acid-2", "t2", 0.6, 4.0),
                Item("acetone-2", "t2", 0.6, 5.5, "poles"),
                Item("water-2", "t2", 0.7, 4.2),
            ),
        ),
        GoodsScene(
            "peroxide and turpentine 90 inches apart, 2 m are asked for",
            "nothing, unless inches are taken for centimetres",
            (Item("peroxide-3", "t3", 0.4, 3.0), Item("turpentine-3", "t3", 0.4, 5.286)),
        ),
        GoodsScene(
            "acid and acetone at the same place, on two trucks",
            "nothing",
            (Item("acid-4", "t4", 1.0, 2.0), Item("acetone-5", "t5", 1.0, 2.0)),
        ),
        GoodsScene(
            "sodium beside batteries; nobody wrote a distance for sodium",
            "nothing, and a hint",
            (Item("sodium-6", "t6", 0.5, 1.0), Item("battery-6", "t6", 0.6, 1.0, "poles")),
        ),
        GoodsScene(
            "detonators, fireworks and lighters on one truck; 40 ft and 39 ft are asked for",
            "another truck for the fireworks",
            (
                Item("detonators-7", "t7", 0.5, 0.5, "poles"),
                Item("fireworks-7", "t7", 0.5, 11.0),
                Item("lighters-7", "t7", 0.5, 5.5),
            ),
        ),
    )


def reports(start_ms: int) -> list[GoodsReport]:
    """Everything the trackers send, in order of arrival, for a play that starts at `start_ms`."""
    items = [item for scene in scenes() for item in scene.items]
    sent = [
        _report(item, start_ms + second * 1_000 + place * 7)
        for place, item in enumerate(items)
        for second in range(SECONDS)
    ]
    return sorted(sent, key=lambda report: (report.arrives_ms, report.source, str(report.payload)))


def _report(item: Item, at_ms: int) -> GoodsReport:
    if item.tracker == "poles":
        return GoodsReport(at_ms + 120, "poles", _pole_payload(item, at_ms))
    return GoodsReport(at_ms + 40, "tags", _tag_payload(item, at_ms))


def _tag_payload(item: Item, at_ms: int) -> dict[str, Any]:
    """Inches from the corner, the tag instead of the item, seconds since 1970."""
    return {
        "tag": _tags()[item.name],
        "right_in": item.x * INCHES_PER_METRE,
        "ahead_in": item.y * INCHES_PER_METRE,
        "at": at_ms / 1_000,
    }


def _pole_payload(item: Item, at_ms: int) -> dict[str, Any]:
    """Centimetres and bearing from the middle of the load bed, the clock on the wall."""
    middle_x, middle_y = _middles()[item.truck]
    dx, dy = item.x - middle_x, item.y - middle_y
    local = (_BEGINNING + timedelta(milliseconds=at_ms)).astimezone(_ZONE)
    return {
        "truck": item.truck,
        "item": item.name,
        "bearing_deg": math.degrees(math.atan2(dx, dy)),
        "range_cm": math.hypot(dx, dy) * 100,
        "clock": local.strftime("%d.%m.%Y %H:%M:%S.%f"),
    }


@cache
def _tags() -> dict[str, str]:
    with (SITE / "tags.csv").open(encoding="utf-8") as file:
        return {row["item"]: row["tag"] for row in csv.DictReader(file)}


@cache
def _middles() -> dict[str, tuple[float, float]]:
    with (SITE / "trucks.csv").open(encoding="utf-8") as file:
        return {
            row["id"]: (float(row["middle_x_m"]), float(row["middle_y_m"]))
            for row in csv.DictReader(file)
        }
