"""The building of a made-up year: its people and rooms, and a site that speaks of them. [PI-9,
UX-7]
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

SOURCE = "positions"
FOLDER = "history"
POLICY = "alone"

ROOMS = 12
GUESTS_LEAST, SPARE_PEOPLE = 12, 6
_WIDTH, _DEPTH, _GRID, _COLUMNS = 12.0, 10.0, 16.0, 4
_RESTRICTED = ("archive", "lab", "server-room", "vault", "workshop", "depot")
_PUBLIC = ("canteen", "hall", "library", "office-1", "office-2", "meeting")
LOBBY = (-20.0, -20.0)

SITE = f"""# A building over a long time: a guest may not be alone in a restricted room.
[site]
name = "year"
lateness = "2s"

[concepts.person.attributes]
status = "text"
position = "point"
[concepts.room.attributes]
security = "text"
area = "rectangle"

[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"
[relationships.within]
between = ["person.position", "person.position"]
function = "within"

[tables.persons]
concept = "person"
csv = "persons.csv"
key = "id"
columns = {{ status = "status" }}
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = {{ security = "security", area = ["x1", "y1", "x2", "y2"] }}

[sources.{SOURCE}]
concept = "person"
attribute = "position"
key = "person"
value = ["x", "y"]

[policies]
files = ["*.dpl"]
window = "5s"

[peers.guard]
addresses = ["inbox:"]
[actions."raise alarm"]
send_to = "peer:guard"
text = "Guest {{A}} is alone in {{R}}"
"""

ALONE = """concepts
  person A (status='guest')
  person B (status='employee')
  room R (security='restricted')
conditions
  A is inside R
  A is not within 5m of B or B is not inside R
actions
  raise alarm
"""


class House(msgspec.Struct, frozen=True):
    """Who may be where; the same for the same number of pairs."""

    guests: int
    employees: int

    @staticmethod
    def of(pairs: float) -> House:
        """People enough for so many guests with their escorts at once."""
        guests = max(GUESTS_LEAST, int(np.ceil(pairs)) + SPARE_PEOPLE)
        return House(guests, guests + SPARE_PEOPLE)

    def names(self) -> list[str]:
        """Of all people, guests first."""
        guests = [f"guest-{number + 1:02}" for number in range(self.guests)]
        return guests + [f"staff-{number + 1:02}" for number in range(self.employees)]

    def persons_csv(self) -> str:
        status = ["guest"] * self.guests + ["employee"] * self.employees
        rows = [f"{name},{what}" for name, what in zip(self.names(), status, strict=True)]
        return "\n".join(["id,status", *rows]) + "\n"


def rooms() -> tuple[list[str], npt.NDArray[np.float64]]:
    """Names and the upper left and lower right corners of the rooms, restricted ones first."""
    numbers = np.arange(ROOMS)
    low = np.column_stack((numbers % _COLUMNS, numbers // _COLUMNS)) * _GRID
    high = low + np.array([_WIDTH, _DEPTH])
    return [*_RESTRICTED, *_PUBLIC], np.column_stack((low, high))


def restricted_rooms() -> int:
    """How many of the first rooms are restricted."""
    return len(_RESTRICTED)


def rooms_csv() -> str:
    names, corners = rooms()
    rows = ["id,security,x1,y1,x2,y2"]
    for number, (name, corner) in enumerate(zip(names, corners, strict=True)):
        security = "restricted" if number < len(_RESTRICTED) else "public"
        rows.append(",".join([name, security, *(f"{side:g}" for side in corner)]))
    return "\n".join(rows) + "\n"
