"""Random policies with situations as text, over the ontology of `situation_worlds`. [SI-1 to SI-8]

Every atom and every nesting occurs. What SI-3 refuses does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from support.varied.sites import Draws

DURATIONS = ("1 s", "1 s", "2 s", "3 s", "5 s", "1500 ms")
WINDOWS = ("3 s", "5 s", "10 s", "20 s")
ZONES = ("Europe/Berlin", "Asia/Kathmandu", "America/New_York")
_COMPARATORS = ("above", "below", "at least", "at most", "is not below", "is not above", ">", "<=")
_EQUALITIES = ("=", "!=")
_CONSTANTS = {
    "temperature": ("26.5 degC", "27 degC", "28 degC", "30 degC", "300.15 K", "86 degF"),
    "difference": ("0 K", "1 K", "1.5 K", "-1.5 K", "3 K", "1.71 K"),
    "humidity": ("30 %", "40 %", "50 %", "500 permille"),
    "level": ("1 m", "150 cm", "1.05 m"),
    "change of level": ("0 m", "5 cm", "-0.5 m"),
    "rate": ("0 K/min", "30 K/min", "-1 K/s", "1000 K/h"),
    "rate of level": ("0 cm/h", "5 cm/s", "-30 m/min"),
    "number": ("0", "1", "2", "0.5", "-0.15"),
    "Celsius": ("27", "28", "30"),
    "Fahrenheit": ("80.6", "86", "0"),
    "count": ("0", "1", "2", "3", "4"),
    "length": ("3 m", "5 m", "200 cm", "10 m"),
}
_RANGES = {
    "temperature": ("27 and 30 degC", "26.5 degC and 28 degC", "299.15 K and 86 degF"),
    "difference": ("0 K and 2 K", "-1 and 1.5 K"),
    "humidity": ("30 and 50 %", "40 % and 40 %"),
    "level": ("1 and 1.5 m",),
    "number": ("0 and 1",),
    "Celsius": ("27 and 28",),
    "count": ("1 and 2", "0 and 1", "2 and 4"),
    "length": ("1 and 5 m",),
}
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MEANS = ("mean", "mean", "min", "max", "median", "median", "percentile 90", "percentile 33.4")
_PROPERTIES = {
    "station": ("region='north'", "region != 'south'", "limit > 27 degC", "name='One'"),
    "person": ("status='guest'", "status != 'guest'", "status='employee'"),
    "room": ("security='restricted'", "limit <= 300.15 K"),
}
_ALIASES = {"station": "ST", "person": "AB", "room": "RQ"}
_CASTS: Sequence[tuple[str, ...]] = (
    ("station",),
    ("station",),
    ("station",),
    ("station",),
    ("station", "station"),
    ("station", "station"),
    ("person",),
    ("person", "room"),
    ("person", "person"),
    ("room",),
    ("station", "room"),
    (),
)
"""The concepts of the aliases."""
_MET: Sequence[tuple[str, ...]] = (("person", "room"), ("person", "person"))


class AliasText(NamedTuple):
    """An alias in scope."""

    name: str
    concept: str


Scope = tuple[AliasText, ...]
_Drawn = TypeVar("_Drawn")


class MeasuredText(NamedTuple):
    """The text of a value and what it measures, a key of the constants."""

    text: str
    what: str


class PolicyWriter:
    """Writes the parts of one policy; `edge` is a moment that clocks should turn at."""

    def __init__(self, draws: Draws, edge: int, zone: str) -> None:
        self._draws, self._edge, self._zone = draws, edge, zone
        self._made = 0

    def policy(self) -> str:
        """The whole text."""
        scope, lines = self._concepts()
        situation = self._section(scope)
        cleared = [f"  {self._condition(scope, self._number(0, 2))}"] if self._chance(33) else []
        text = "\n".join([*situation, *cleared])
        for alias in scope:
            if not _names(text, alias):
                situation.append(f"  {self._about(alias, scope)}")
        if self._chance(30):
            situation.append(f"  at most once per {self._one(('3 s', '10 s', '20 s', '60 s'))}")
        if cleared:
            cleared.insert(0, "cleared by")
        whole = ["concepts", *lines, "situation", *situation, *cleared, "actions", "  look"]
        if self._chance(20):
            whole += ["actions when cleared", "  look away"]
        return "\n".join(whole) + "\n"

    def guarded(self) -> str:
        """The text of a policy with conditions and `while`."""
        cast = self._one((("station",), ("station",), *_MET, ("station", "station")))
        scope = self._aliases(cast)
        others = [one for one in self._aliases(("station", "person", "room")) if one not in scope]
        lines = [self._met(scope)]
        number = self._one((0, 0, 1, 1, 2))
        lines += [self._happening((*scope, *others)) for _ in range(number)]
        if self._chance(35):
            lines.append(f"at most once per {self._one(('1 s', '3 s', '10 s'))}")
        if self._chance(30):
            lines.append(f"within {self._one(DURATIONS)}")
        if self._chance(50):
            lines.append("consume recent")
        definitions = [self._definition(one.concept, one.name) for one in scope]
        definitions += [f"{one.concept} {one.name}" for one in others if _names(str(lines), one)]
        named = tuple(self._sample(scope)[: self._number(0, 2)]) if self._chance(30) else scope
        guard = [self._condition(named, self._number(0, 2)) for _ in range(self._one((1, 1, 1, 2)))]
        sections = {"concepts": definitions, "conditions": lines, "while": guard}
        return "".join(
            f"{name}\n" + "".join(f"  {line}\n" for line in own)
            for name, own in (*sections.items(), ("actions", ["look"]))
        )

    def _aliases(self, cast: Sequence[str]) -> tuple[AliasText, ...]:
        found: list[AliasText] = []
        for concept in cast:
            name = next(one for one in _ALIASES[concept] if AliasText(one, concept) not in found)
            found.append(AliasText(name, concept))
        return tuple(found)

    def _met(self, scope: Scope) -> str:
        """A line that is an event of all aliases."""
        names = [one.name for one in scope]
        match [one.concept for one in scope]:
            case ["station", "station"]:
                return f"temperature of {names[0]} > temperature of {names[1]}"
            case ["person", "room"]:
                return f"{names[0]} is inside {names[1]}"
            case ["person", "person"]:
                return f"{names[0]} is within {self._one(_CONSTANTS['length'])} of {names[1]}"
        return self._seen(scope)

    def _seen(self, scope: Scope) -> str:
        """An event of a station."""
        name = self._one([one.name for one in scope if one.concept == "station"])
        what = self._one(("temperature", "temperature", "humidity", "level"))
        return f"{what} of {name} {self._one(('above', 'below'))} {self._one(_CONSTANTS[what])}"

    def _happening(self, scope: Scope) -> str:
        """Another line: absence, an alternative, a sequence, a duration or silence."""
        first, second = self._seen(scope), self._seen(scope)
        if self._chance(40):
            people = [one for one in scope if one.concept in ("person", "room")]
            if [one.concept for one in people] == ["person", "room"]:
                second = self._met(tuple(people))
        kind = self._number(0, 6)
        span = self._one(DURATIONS)
        lines = (
            f"NOT {first}",
            f"{first} OR NOT {second}",
            f"{first} OR {second}",
            f"{first} FOLLOWED-BY {second}",
            f"{first} FOLLOWED-BY NOT {second}",
            f"{first} for {span}",
            f"no temperature of {self._one([o.name for o in scope if o.concept == 'station'])} "
            f"for {span}",
        )
        return lines[kind]

    def _concepts(self) -> tuple[Scope, list[str]]:
        scope: list[AliasText] = []
        lines: list[str] = []
        for concept in self._one(_CASTS):
            name = next(one for one in _ALIASES[concept] if AliasText(one, concept) not in scope)
            scope.append(AliasText(name, concept))
            lines.append(f"  {self._definition(concept, name)}")
        pairs = [one.name for one in scope if one.concept == scope[0].concept]
        if len(pairs) == 2 and self._chance(30):
            lines.append(f"  {pairs[0]} and {pairs[1]} may be the same")
        return tuple(scope), lines

    def _definition(self, concept: str, name: str) -> str:
        if concept == "person" and self._chance(15):
            return f"employee {name}"
        wanted = f" ({self._one(_PROPERTIES[concept])})" if self._chance(20) else ""
        return f"{concept} {name}{wanted}"

    def _section(self, scope: Scope) -> list[str]:
        lines = [f"  {self._condition(scope, 3)}"]
        if self._chance(20):
            lines.append(f"  {self._condition(scope, 1)}")
        return lines

    # Conditions.

    def _condition(self, scope: Scope, depth: int) -> str:
        kind = self._number(0, 12) if depth > 0 else 0
        if kind <= 4:
            return self._atom(scope)
        if kind == 12:
            return f"NOT ({self._condition(scope, depth - 1)})"
        if kind in (5, 6):
            return f"({self._condition(scope, depth - 1)}) for {self._one(DURATIONS)}"
        if kind in (7, 8, 9):
            word = self._one((" AND ", " OR ", " OR "))
            number = self._number(2, 3)
            return f"({word.join(self._condition(scope, depth - 1) for _ in range(number))})"
        return self._quantified(scope, depth)

    def _quantified(self, scope: Scope, depth: int) -> str:
        concept = self._one(("station", "station", "person", "person", "room"))
        self._made += 1
        inner = AliasText(f"X{self._made}", concept)
        inside = (*scope, inner)
        condition = self._condition(inside, min(depth - 1, 1))
        if not _names(condition, inner):
            about = self._about(inner, inside)
            condition = self._one((about, f"{about} AND {condition}", f"{about} OR {condition}"))
        quantifier = self._one(("some", "no", "no", "at least 1", "at least 2", "at most 1"))
        with_what = f"{self._definition(concept, inner.name)} with ({condition})"
        lasting = f" for {self._one(DURATIONS)}" if self._chance(20) else ""
        return f"{quantifier} {with_what}{lasting}"

    def _atom(self, scope: Scope) -> str:
        if not scope or self._chance(8):
            return self._time() if self._chance(60) else self._quantified(scope, 1)
        return self._about(self._one(scope), scope)

    def _about(self, alias: AliasText, scope: Scope) -> str:
        """An atom that names an alias."""
        options: list[Callable[[], str]] = []
        if alias.concept == "station":
            options = [
                *[lambda: self._comparison(alias, scope)] * 8,
                lambda: self._text(alias, scope),
                lambda: self._silence(alias),
            ]
        elif alias.concept == "person":
            options = [
                *[lambda: self._place(alias, scope)] * 7,
                lambda: self._text(alias, scope),
                lambda: self._silence(alias),
                lambda: self._counted(alias, scope),
            ]
        else:
            options = [
                *[lambda: self._room(alias, scope)] * 9,
                lambda: self._text(alias, scope),
            ]
        return self._one(options)()

    def _silence(self, alias: AliasText) -> str:
        names = {"station": ("temperature", "humidity", "event"), "person": ("position", "event")}
        name = self._one(names[alias.concept])
        return f"no {name} of {alias.name} for {self._one(('2 s', '5 s', '10 s'))}"

    def _text(self, alias: AliasText, scope: Scope) -> str:
        attribute, known = self._one(
            {
                "station": (
                    ("region", ("north", "south")),
                    ("door", ("open", "shut")),
                    ("door", ("open", "")),
                    ("name", ("One", "Two")),
                    ("id", ("2", "10", "n9")),
                ),
                "person": (("status", ("guest", "employee")), ("id", ("2", "ann"))),
                "room": (("security", ("restricted", "public")), ("id", ("r1", "r2"))),
            }[alias.concept]
        )
        value = f"{attribute} of {alias.name}"
        if self._chance(30):
            negated = self._one(("is", "is not"))
            return f"{value} {negated} one of ({', '.join(map(repr, known))})"
        others = [one for one in scope if one.concept == alias.concept and one != alias]
        if others and self._chance(30):
            return f"{value} {self._one(_EQUALITIES)} {attribute} of {self._one(others).name}"
        return f"{value} {self._one(_EQUALITIES)} {self._one(known)!r}"

    def _place(self, alias: AliasText, scope: Scope) -> str:
        rooms = [one.name for one in scope if one.concept == "room"]
        people = [one.name for one in scope if one.concept == "person" and one != alias]
        negated = " not" if self._chance(15) else ""
        if rooms and (not people or self._chance(50)):
            return f"{alias.name} is{negated} inside {self._one(rooms)}"
        if people:
            pair = self._sample((alias.name, self._one(people)))
            if self._chance(25):
                return self._compared(self._distance(*pair))
            reach = self._one(("3 m", "5 m", "200 cm"))
            return f"{pair[0]} is{negated} within {reach} of {pair[1]}"
        self._made += 1
        other = AliasText(f"X{self._made}", self._one(("person", "room")))
        quantifier = self._one(("some", "no", "at least 2", "at most 1"))
        inner = self._place(alias, (*scope, other))
        return f"{quantifier} {self._definition(other.concept, other.name)} with ({inner})"

    def _room(self, alias: AliasText, scope: Scope) -> str:
        people = [one for one in scope if one.concept == "person"]
        stations = [one for one in scope if one.concept == "station"]
        if people:
            return self._place(self._one(people), (alias,))
        if stations and self._chance(60):
            return f"temperature of {self._one(stations).name} above limit of {alias.name}"
        self._made += 1
        other = AliasText(f"X{self._made}", "person")
        quantifier = self._one(("some", "no", "at least 1", "at least 2", "at most 1"))
        inner = self._place(other, (alias, other))
        return f"{quantifier} {self._definition('person', other.name)} with ({inner})"

    # Values.

    def _comparison(self, alias: AliasText, scope: Scope) -> str:
        if self._chance(20):
            return self._counted(alias, scope)
        if self._chance(6):
            other = self._one([one.name for one in scope if one.concept == "station"])
            bound = self._one((f"limit of {other}", f"temperature of {other}"))
            negated = self._one(("", "is not "))
            return f"temperature of {alias.name} {negated}between {bound} and 30 degC"
        return self._compared(self._measured(alias, scope), self._other(alias, scope))

    def _compared(self, value: MeasuredText, other: MeasuredText | None = None) -> str:
        if other is not None and other.what == value.what and self._chance(30):
            return f"{value.text} {self._one(_COMPARATORS)} {other.text}"
        if value.what in _RANGES and self._chance(20):
            negated = self._one(("", "is not "))
            return f"{value.text} {negated}between {self._one(_RANGES[value.what])}"
        constant = self._one(_CONSTANTS[value.what])
        if self._chance(6):
            second = self._one(_CONSTANTS[value.what])
            return f"{value.text} {self._one(('is', 'is not'))} one of ({constant}, {second})"
        if self._chance(6):
            return f"{constant} {self._one(_COMPARATORS)} {value.text}"
        comparator = self._one(_EQUALITIES if self._chance(8) else _COMPARATORS)
        return f"{value.text} {comparator} {constant}"

    def _other(self, alias: AliasText, scope: Scope) -> MeasuredText | None:
        """A value that `alias` may be compared with; it need not fit."""
        stations = [one for one in scope if one.concept == "station"]
        if self._chance(50):
            offset = self._one(("", " + 1.5 K", " - 1 K"))
            return MeasuredText(f"limit of {alias.name}{offset}", "temperature")
        return self._measured(self._one(stations), scope)

    def _measured(self, alias: AliasText, scope: Scope) -> MeasuredText:
        """A value of a station."""
        name = alias.name
        others = [one.name for one in scope if one.concept == "station" and one != alias]
        kind = self._number(0, 11)
        if kind <= 3:
            return self._one(
                (
                    MeasuredText(f"temperature of {name}", "temperature"),
                    MeasuredText(f"temperature of {name}", "temperature"),
                    MeasuredText(f"humidity of {name}", "humidity"),
                    MeasuredText(f"level of {name}", "level"),
                )
            )
        if kind <= 8:
            return self._aggregate(name)
        if kind == 9 and others:
            other = self._one(others)
            return self._one(
                (
                    MeasuredText(f"temperature of {name} - temperature of {other}", "difference"),
                    MeasuredText(
                        f"(temperature of {name} + temperature of {other}) / 2", "temperature"
                    ),
                    MeasuredText(f"humidity of {name} / humidity of {other}", "number"),
                )
            )
        return self._formula(name)

    def _aggregate(self, name: str) -> MeasuredText:
        window = f"in the last {self._one(WINDOWS)}"
        least = f" (at least {self._number(1, 3)} readings)" if self._chance(30) else ""
        what = self._one(("temperature", "temperature", "humidity", "level"))
        kind = self._number(0, 4)
        if kind == 0:
            measured = {"temperature": "difference", "level": "change of level"}.get(what, what)
            return MeasuredText(f"change of {what} of {name} {window}{least}", measured)
        if kind == 1 and what != "humidity":
            measured = "rate" if what == "temperature" else "rate of level"
            return MeasuredText(f"rate of {what} of {name} {window}{least}", measured)
        if kind == 2 and what != "temperature":
            return MeasuredText(f"sum of {what} of {name} {window}{least}", what)
        if kind == 3 and what == "temperature":
            value = f"{what} of {name} {window}"
            return MeasuredText(f"max of {value} - min of {value}", "difference")
        return MeasuredText(f"{self._one(_MEANS)} of {what} of {name} {window}{least}", what)

    def _formula(self, name: str) -> MeasuredText:
        temperature, humidity = f"temperature of {name}", f"humidity of {name}"
        return self._one(
            (
                MeasuredText(f"{temperature} - limit of {name}", "difference"),
                MeasuredText(f"2 * {temperature} - limit of {name}", "temperature"),
                MeasuredText(f"{temperature} + 1.5 K", "temperature"),
                MeasuredText(f"{temperature} in degC", "Celsius"),
                MeasuredText(f"{temperature} in degF", "Fahrenheit"),
                MeasuredText(f"1 / ({temperature} in degC - 27)", "number"),
                MeasuredText(
                    f"0.05 * {humidity} in % - 0.1 * ({temperature} in degC - 27)", "number"
                ),
                MeasuredText(f"{humidity} / (0.5 * {humidity} + 10 %)", "number"),
                MeasuredText(f"0.1 * ({humidity} - 10 %)", "humidity"),
                MeasuredText(f"level of {name} * 2 - 1 m", "level"),
            )
        )

    def _distance(self, first: str, second: str) -> MeasuredText:
        function = self._one(("distance", "distance", "distance", "minimumDistance"))
        return MeasuredText(f"{function}({first}, {second})", "length")

    def _counted(self, alias: AliasText, scope: Scope) -> str:
        count = self._count(alias, scope)
        if not self._chance(40):
            return self._compared(MeasuredText(count, "count"))
        other = self._count(alias, scope)
        if self._chance(20):
            return f"{count} {self._one(_COMPARATORS)} {other}"
        options = [
            MeasuredText(f"{count} * 2 - 1", "count"),
            MeasuredText(f"2 - {count} / 2", "number"),
            MeasuredText(f"{count} - {other}", "count"),
            MeasuredText(f"{count} + {other}", "count"),
            MeasuredText(f"{count} * ({other} - 1)", "count"),
            MeasuredText(f"{count} / {other}", "number"),
            MeasuredText(f"0 * {count}", "number"),
        ]
        if alias.concept == "station":
            humidity = f"humidity of {alias.name}"
            options += [
                MeasuredText(f"{humidity} * {count}", "humidity"),
                MeasuredText(f"({humidity} / {count}) in permille", "number"),
                MeasuredText(f"{count} - {humidity} in %", "number"),
                MeasuredText(f"(temperature of {alias.name} - 27 degC) * {count}", "difference"),
            ]
        return self._compared(self._one(options))

    def _count(self, alias: AliasText, scope: Scope) -> str:
        window = f"in the last {self._one(WINDOWS)}"
        if alias.concept == "person":
            rooms = [one.name for one in scope if one.concept == "room"]
            of = f"position of {alias.name}"
            if rooms:
                negated = self._one(("", "NOT "))
                of = self._one((of, f"({negated}{alias.name} is inside {self._one(rooms)})"))
        else:
            of = self._counted_of_station(alias.name)
        return f"count of {of} {window}"

    def _counted_of_station(self, name: str) -> str:
        hot = f"temperature of {name} {self._one(('above', 'at most'))} 27 degC"
        return self._one(
            (
                f"temperature of {name}",
                f"humidity of {name}",
                f"({hot})",
                f"({hot} AND NOT humidity of {name} above 40 %)",
                f"({hot} OR humidity of {name} above 40 %)",
                f"(temperature of {name} above limit of {name})",
                f"(door of {name} = 'open')",
                f"(region of {name} = 'north' AND temperature of {name} between 27 and 30 degC)",
            )
        )

    # Times.

    def _time(self) -> str:
        zone = self._one(ZONES) if self._chance(30) else ""
        local = datetime.fromtimestamp(self._edge / 1000, ZoneInfo(zone or self._zone))
        in_zone = f" in '{zone}'" if zone else ""
        negated = " not" if self._chance(25) else ""
        days = f" on {', '.join(self._day(local) for _ in range(self._number(1, 2)))}"
        if self._chance(30):
            return f"time is{negated}{days}{in_zone}"
        shifts = self._sample((0, self._one((-90, -60, -1, 1, 60, 150))))
        times = [f"{local + timedelta(minutes=shift):%H:%M}" for shift in shifts]
        if times[1] == "00:00":
            times[1] = "24:00" if times[0] != "00:00" else "00:01"
        on_days = days if self._chance(30) else ""
        return f"time is{negated} between {times[0]} and {times[1]}{on_days}{in_zone}"

    def _day(self, local: datetime) -> str:
        day = local - timedelta(days=self._number(0, 1))
        weekday = _WEEKDAYS[day.weekday()]
        later = _WEEKDAYS[(day.weekday() + self._number(1, 6)) % 7]
        return self._one(
            (weekday, f"{weekday}-{later}", f"{day.day} {_MONTHS[day.month - 1]}", "holidays")
        )

    # Draws.

    def _one(self, options: Sequence[_Drawn]) -> _Drawn:
        return self._draws.choice(options)

    def _number(self, low: int, high: int) -> int:
        return self._draws.randint(low, high)

    def _chance(self, percent: int) -> bool:
        return self._draws.randint(0, 99) >= 100 - percent  # small draws are false

    def _sample(self, items: Sequence[_Drawn]) -> list[_Drawn]:
        return self._draws.sample(items, len(items))


def _names(text: str, alias: AliasText) -> bool:
    return re.search(rf"\b{alias.name}\b", text) is not None
