"""A small site with something for every page of the console: freezers that get warm, people who
walk through rooms, a policy, and people to notify.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rapport.core.times import format_time

TOKEN = "0123456789abcdefXYZ-gateway-token"
PASSWORD = "a long enough passw0rd"
MINUTE_MS = 60_000

_SITE = """
[site]
name = "cold-store"
lateness = "1s"

[concepts.freezer.attributes]
temperature = "number"
name = "text"
[concepts.freezer.units]
temperature = "degC"
[concepts.person.attributes]
position = "point"
[concepts.room.attributes]
area = "rectangle"
[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"

[tables]
freezers = { concept = "freezer", csv = "freezers.csv", key = "id", columns = { name = "name" } }
persons = { concept = "person", csv = "persons.csv", key = "id" }

[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = { area = ["x1", "y1", "x2", "y2"] }

[sources.freezers]
concept = "freezer"
attribute = "temperature"
key = "freezer"
time = "time"
value = "temperature"
period = "1h"
[sources.tags]
concept = "person"
attribute = "position"
key = "person"
time = "time"
value = ["x", "y"]

[policies]
files = ["*.dpl"]
[peers.ana]
addresses = ["inbox:"]
[peers.ben]
addresses = ["inbox:"]
[actions."tell ana"]
send_to = "peer:ana"
text = "{F} is too warm"
"""
_CLOSED = """
[access.ana]
role = "operator"
[access.vera]
role = "viewer"
[access.gateway]
token = "file:gateway.token"
publish = ["raw.*"]
subscribe = ["*"]
[peers.vera]
addresses = ["inbox:"]
"""
_WARM = """concepts
  freezer F
conditions
  temperature of F above -12 degC for 2 min
actions
  tell ana
"""


def write_freezer_site(directory: Path, *, closed: bool = False, freezers: int = 3) -> Path:
    """Writes the site; a closed one asks for a token or password."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "site.toml").write_text(_SITE + (_CLOSED if closed else ""))
    (directory / "too-warm.dpl").write_text(_WARM)
    rows = [f"f{number},Freezer {number}" for number in range(1, freezers + 1)]
    (directory / "freezers.csv").write_text("\n".join(["id,name", *rows, ""]))
    (directory / "persons.csv").write_text("id\np1\np2\n")
    (directory / "rooms.csv").write_text("id,x1,y1,x2,y2\nlab,0,0,10,8\nlobby,12,0,30,8\n")
    (directory / "gateway.token").write_text(TOKEN)
    return directory


def warm_night(now_ms: int) -> list[dict[str, Any]]:
    """Readings of two hours; `f2` is too warm for twenty minutes."""
    return [
        {
            "id": f"f{freezer}-{minute}",
            "time": format_time(now_ms - (120 - minute) * MINUTE_MS),
            "freezer": f"f{freezer}",
            "temperature": -9.5 if freezer == 2 and 60 <= minute < 80 else -18.0 - minute % 3,
        }
        for minute in range(0, 120, 2)
        for freezer in (1, 2)
    ]


def walk(now_ms: int) -> list[dict[str, Any]]:
    """Positions of a minute; `p1` goes from the lab into the lobby."""
    return [
        {
            "id": f"p{step}",
            "time": format_time(now_ms - (60 - step) * 1_000),
            "person": "p1",
            "x": 2 + step / 4,
            "y": 4,
        }
        for step in range(0, 60, 5)
    ]
