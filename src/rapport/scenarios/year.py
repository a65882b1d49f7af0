"""A history of any length, made up: a building's people by day and night, on workdays and weekends,
as one Parquet file per day in arrival order. [PI-9, UX-7]

The same numbers and seed give the same files. Every day has its own chance, so days can be made in
any order, and a run that was interrupted goes on with the days that are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.core.errors import Conflict, InvalidInput, StoreUnavailable
from rapport.lake.parquet_files import replaced_file
from rapport.scenarios.year_site import (
    ALONE,
    FOLDER,
    LOBBY,
    POLICY,
    ROOMS,
    SITE,
    House,
    restricted_rooms,
    rooms,
    rooms_csv,
)

_MANIFEST = "year.json"
_SLOT_S, _SLOTS, _STEP_MS = 300, 288, 2_000
"""Guests and their escorts stay five minutes in a room and are seen every two seconds."""
_STEPS = _SLOT_S * 1_000 // _STEP_MS
_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_GRAIN = 64.0
"""Positions are in 64ths of a metre, so that every comparison is exact."""
_ROW_GROUP = 131_072
_MOST_READINGS_A_DAY = 9_000_000
_LEFT_ALONE = 0.004
"""How often an escort leaves a guest alone in a restricted room during a stay, on a usual day."""
_VERY_LATE = 1 / 50_000
_SEED_BITS = 2**64 - 1
"""Seeds below 0 are seeds, too; numpy takes none."""

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


class Year(msgspec.Struct, frozen=True, kw_only=True):
    """What is made up; `readings` is about how many in all."""

    readings: int = 1_300_000
    days: int = 31
    first: str = "2025-01-01"
    seed: int = 1

    def begin(self) -> date:
        """The first day; raises InvalidInput."""
        try:
            return date.fromisoformat(self.first)
        except ValueError:
            raise InvalidInput(
                f"{self.first!r} is not a day", code="year.bad_day", hint="write 2025-01-01"
            ) from None

    def check(self) -> None:
        """Raises InvalidInput for numbers that nothing can be made of."""
        begin = self.begin()
        if not 1 <= self.days <= min(36_500, (date.max - begin).days):
            raise InvalidInput(
                f"{self.days} days from {begin} on cannot be made up",
                code="year.bad_days",
                hint="choose 1 to 36,500, all before the year 10000",
            )
        most = _MOST_READINGS_A_DAY * self.days // 3
        if not 1_000 <= self.readings <= most:
            raise InvalidInput(
                f"{self.readings:,} readings do not fit {self.days} days",
                code="year.bad_readings",
                hint=f"choose 1,000 to {most:,}",
            )

    def pairs(self) -> float:
        """How many guests with an escort are about when the building is fullest."""
        begin = self.begin()
        whole = sum(float(_activity(begin + timedelta(day)).sum()) for day in range(self.days))
        return self.readings / (whole * _STEPS * 2)


class YearSummary(msgspec.Struct, frozen=True):
    """What a run wrote, and what was there before."""

    rows: int
    files: int
    kept_files: int


def write_year(
    directory: Path, year: Year, progress: Callable[[int, int], None] | None = None
) -> YearSummary:
    """Writes the site and its history; days that are there already stay. `progress` is called with
    readings and days done. Raises Conflict when other numbers are there.
    """
    year.check()
    _claim(directory, year)
    pairs = year.pairs()
    _write_site(directory, House.of(pairs))
    folder = directory / FOLDER
    rows = made = kept = 0
    for number in range(year.days):
        path = folder / f"{year.begin() + timedelta(number)}.parquet"
        if path.exists():
            kept += 1
            rows += pq.read_metadata(path).num_rows
        else:
            table = day_table(year, number, pairs)
            with replaced_file(path) as temporary:
                _write(table, temporary)
            made += 1
            rows += len(table)
        if progress is not None:
            progress(rows, number + 1)
    return YearSummary(rows, made, kept)


def day_table(year: Year, number: int, pairs: float) -> pa.Table:
    """The readings of one day in arrival order: `id, time, person, x, y`; `pairs` is the year's."""
    house = House.of(pairs)
    day = year.begin() + timedelta(number)
    chance = np.random.default_rng([year.seed & _SEED_BITS, number])
    stays = _Stays(chance, day, pairs, house)
    start_ms = (day - _EPOCH).days * _DAY_MS
    times, who, x, y = stays.readings(start_ms)
    order = np.argsort(times + _delays(chance, len(times)), kind="stable")
    names = pa.array(house.names())
    serial = int(f"{day:%Y%m%d}") * 10_000_000
    columns = {
        "id": pa.array(serial + np.arange(len(times))),
        "time": pa.array(times[order]),
        "person": pa.DictionaryArray.from_arrays(pa.array(who[order]), names).cast(pa.string()),
        "x": pa.array(x[order]),
        "y": pa.array(y[order]),
    }
    return pa.table(columns, schema=_SCHEMA)


_METRES = {"unit": "m"}
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("person", pa.string()),
        pa.field("x", pa.float64(), metadata=_METRES),
        pa.field("y", pa.float64(), metadata=_METRES),
    ]
)


class _Stays:
    """The people in each room in each five minutes of a day."""

    def __init__(self, chance: np.random.Generator, day: date, pairs: float, house: House) -> None:
        self._chance, self._house = chance, house
        activity = _activity(day)
        about = np.floor(activity * pairs + chance.random(_SLOTS)).astype(np.int64)
        about = np.minimum(about, house.guests)
        self.slot = np.repeat(np.arange(_SLOTS), about)
        place = np.arange(len(self.slot)) - np.repeat(np.cumsum(about) - about, about)
        self.guest = _shuffled(chance, house.guests)[self.slot, place]
        self.escort = _shuffled(chance, house.employees)[self.slot, place] + house.guests
        self.room = chance.integers(0, ROOMS, len(self.slot))
        left = chance.random(len(self.slot)) < _LEFT_ALONE * _carelessness(day)[self.slot]
        self._is_alone = left & (self.room < restricted_rooms())

    def readings(self, start_ms: int) -> tuple[Whole, Whole, Floats, Floats]:
        """Times, people, x and y: of guests and escorts alike, not in order."""
        steps = np.arange(_STEPS) * _STEP_MS
        begin = start_ms + self.slot[:, None] * (_SLOT_S * 1_000) + steps
        shape = begin.shape
        guest_times = begin + self._chance.integers(0, 900, shape)
        escort_times = begin + 1_000 + self._chance.integers(0, 900, shape)
        guest = self._paths(shape)
        escort = self._beside(guest, steps)
        times = np.concatenate((guest_times.ravel(), escort_times.ravel()))
        who = np.concatenate((np.repeat(self.guest, _STEPS), np.repeat(self.escort, _STEPS)))
        x, y = (
            np.round(np.concatenate((guest[axis].ravel(), escort[axis].ravel())) * _GRAIN) / _GRAIN
            for axis in (0, 1)
        )
        return times, who, x, y

    def _paths(self, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Guests wander about the middle of their room."""
        _names, corners = rooms()
        low, high = corners[self.room, :2], corners[self.room, 2:]
        turn = np.arange(shape[1]) * 0.03
        found = []
        for axis in (0, 1):
            phase, wide = self._chance.random((2, shape[0]))
            middle = (low[:, axis] + high[:, axis]) / 2
            reach = (high[:, axis] - low[:, axis]) * (0.1 + 0.3 * wide)
            found.append(middle[:, None] + reach[:, None] * np.sin(turn + 6.3 * phase[:, None]))
        return found[0], found[1]

    def _beside(self, guest: tuple[Floats, Floats], steps: Whole) -> tuple[Floats, Floats]:
        """Escorts keep near, but some leave for the lobby for a while and come back."""
        _names, corners = rooms()
        count = len(self.slot)
        begin = self._chance.uniform(20_000, 200_000, count)
        gap = 6_000 + self._chance.exponential(12_000, count)
        away = (steps >= begin[:, None]) & (steps < (begin + gap)[:, None])
        away &= self._is_alone[:, None]
        angle, near = 6.3 * self._chance.random(count), 1 + 2 * self._chance.random(count)
        found = []
        for axis, direction in enumerate((np.cos(angle), np.sin(angle))):
            beside = guest[axis] + (near * direction)[:, None]
            low, high = corners[self.room, axis], corners[self.room, axis + 2]
            beside = np.clip(beside, low[:, None] + 0.5, high[:, None] - 0.5)
            found.append(np.where(away, LOBBY[axis], beside))
        return found[0], found[1]


def _activity(day: date) -> Floats:
    """How full the building is in each five minutes, 0 to 1."""
    hour = np.arange(_SLOTS) * 24 / _SLOTS
    work = np.clip(np.minimum(hour - 6.5, 19 - hour) / 2, 0, 1)
    lunch = 1 - 0.4 * np.exp(-((hour - 12.5) ** 2))
    share = {5: 0.12, 6: 0.05}.get(day.weekday(), 1.0)
    if (day.month, day.day) in _HOLIDAYS:
        share = 0.03
    summer = 0.7 if day.month == 8 else 1.0
    return np.asarray(0.03 + share * summer * work * lunch, np.float64)


_HOLIDAYS = {(1, 1), (5, 1), (10, 3), (12, 24), (12, 25), (12, 26), (12, 31)}


def _carelessness(day: date) -> Floats:
    """How many times as often as usual guests are left alone, in each five minutes: at night, on
    Mondays, and in the first two weeks of a quarter, when many are new.
    """
    hour = np.arange(_SLOTS) * 24 // _SLOTS
    careless = np.where((hour < 6) | (hour >= 20), 6.0, 1.0)
    careless *= 2.0 if day.weekday() == 0 else 1.0
    return careless * (3.0 if day.month % 3 == 1 and day.day <= 14 else 1.0)


def _delays(chance: np.random.Generator, count: int) -> Whole:
    """How long readings take to arrive: mostly a moment, few so long that they come too late."""
    delays = chance.exponential(150, count)
    late = np.flatnonzero(chance.random(count) < _VERY_LATE)
    delays[late] += chance.uniform(4_000, 20_000, len(late))
    return delays.astype(np.int64)


def _shuffled(chance: np.random.Generator, people: int) -> Whole:
    """An order of all people for each five minutes."""
    return np.argsort(chance.random((_SLOTS, people)), axis=1)


def _write(table: pa.Table, path: Path) -> None:
    packed = {"id": "DELTA_BINARY_PACKED", "time": "DELTA_BINARY_PACKED"}
    pq.write_table(
        table,
        path,
        row_group_size=_ROW_GROUP,
        compression="zstd",
        use_dictionary=["person", "x", "y"],
        column_encoding=packed,
    )


def _write_site(directory: Path, house: House) -> None:
    """The site around the history; files that somebody changed meanwhile stay as they are."""
    texts = {
        "site.toml": SITE,
        "persons.csv": house.persons_csv(),
        "rooms.csv": rooms_csv(),
        f"{POLICY}.dpl": ALONE,
    }
    for name, text in texts.items():
        if not (directory / name).exists():
            (directory / name).write_text(text, encoding="utf-8")


def _claim(directory: Path, year: Year) -> None:
    """Refuses a directory that holds another history, or something else."""
    said = msgspec.json.format(msgspec.json.encode(year)).decode() + "\n"
    path = directory / _MANIFEST
    try:
        if path.exists():
            if path.read_text(encoding="utf-8") != said:
                raise Conflict(
                    f"{directory} holds a history made with other numbers",
                    code="year.other_numbers",
                    hint=f"{path} has them; use the same, or another directory",
                )
            return
        if directory.exists() and any(directory.iterdir()):
            raise Conflict(
                f"{directory} is not empty", code="year.not_empty", hint="use a new directory"
            )
        (directory / FOLDER).mkdir(parents=True, exist_ok=True)
        path.write_text(said, encoding="utf-8")
    except OSError as error:
        raise StoreUnavailable(f"cannot write {directory}: {error.strerror}") from None
