"""Random typed interpretations. [ME-14]"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from rapport.core.schema import PARTS
from rapport.mediation.conversion import conversions as kinds
from rapport.mediation.conversion.conversions import Conversion, converts
from rapport.mediation.conversion.lookups import TableLookup
from rapport.mediation.conversion.notations import ParseNumber, ParseTime
from rapport.mediation.conversion.places import (
    FixedOrigin,
    TableOrigin,
    ToAbsolute,
    ToCartesian,
    ToRelative,
)
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    DropAttribute,
    Interpretation,
    MergeAttributes,
    RenameAttribute,
    Rule,
    ShapeStep,
    SplitAttribute,
    TypeMapping,
)
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType
from support.varied.interpretations import (
    ATTRIBUTES,
    CONCEPT,
    EPOCHS,
    ISO,
    Case,
    Make,
    binding_of,
    number_text,
    one_of,
    some_number,
)


class _Draft:
    """A typed interpretation being put together."""

    def __init__(self, name: str, chance: Random) -> None:
        self.name, self.chance = name, chance
        self.fields: dict[tuple[str, ...], Make] = {}
        self.attributes: list[Attribute] = []
        self.types: list[Any] = []
        self.rules: list[Rule] = []
        self.conversions: list[Conversion] = []
        self.shape: list[ShapeStep] = []
        self.gives: list[str] = []

    def take(self, name: str, kind: str, make: Make | None, *, optional: bool = False) -> None:
        self.attributes.append(Attribute(name, kind, optional))
        if make is not None:
            self.fields[name,] = make

    def convert(self, attribute: str, conversion: Conversion) -> None:
        self.conversions.append(conversion)
        self.rules.append(Rule(f"Row.{attribute}", conversion.name, "in"))

    def maybe(self) -> bool:
        return self.chance.random() < 0.5


def typed_case(name: str, chance: Random) -> Case:
    """A random typed interpretation that gives some attributes of the concept."""
    draft = _Draft(name, chance)
    _key(draft)
    _time(draft)
    for add in chance.sample((_temp, _place, _area, _words, _truth), chance.randint(1, 4)):
        add(draft)
    if draft.maybe():
        draft.take("waste", "number", some_number, optional=draft.maybe())
        if draft.maybe():
            step = converts("wasted", "number", "number", kinds.Formula(2.0, 1.0, 3.0))
            draft.convert("waste", step)
        draft.shape.append(DropAttribute("waste"))
    typed = Interpretation(
        name=name,
        types=(*draft.types, ComplexType("Row", tuple(draft.attributes))),
        mappings=(TypeMapping("Row", CONCEPT, "in", tuple(draft.shape)),),
        rules=tuple(draft.rules),
        conversions=tuple(draft.conversions),
    )
    first, *further = draft.gives
    binding = binding_of(name, first, ATTRIBUTES[first])
    binding = msgspec.structs.replace(
        binding, further=tuple(further), speaks=chance.choice(("Row", "")), units=()
    )
    return Case(binding, draft.fields, typed=typed)


def _key(draft: _Draft) -> None:
    which = draft.chance.randint(0, 4)
    if which == 0:
        draft.take("key", "text", one_of("anna", 7, "Zoë"))
        return
    if which == 1:
        draft.take("code", "text", one_of("a-b", "a-b-c", "ab"))
        cut = Conversion("cut", ("text",), ("text", "text"), kinds.Cut("-"))
        draft.conversions.append(cut)
        draft.shape.append(SplitAttribute("code", ("key", "rest"), "cut"))
        draft.shape.append(DropAttribute("rest"))
        return
    draft.take("tag", "text", one_of("E1", "E2", "E3", "E9", "7", 7, "Grün"))
    how: Any = TableLookup("tags", ("who",))
    if which == 2:
        how = TableLookup("tags", ("who",), otherwise=("nobody",))
    elif which == 3:
        how = kinds.Enumeration((("E1", "anna"), ("E2", "bob")), "other")
    draft.convert("tag", converts("whose", "text", "text", how))
    draft.shape.append(RenameAttribute("tag", "key"))


def _time(draft: _Draft) -> None:
    which = draft.chance.randint(0, 4)
    if which == 0:
        return
    if which == 1:
        draft.take("day", "text", one_of("2026-03-02", "2026-03-29", "x"))
        draft.take("hour", "text", one_of("09:14:05", "02:30:00"))
        how = ParseTime("iso8601", "Europe/Berlin", "", "T")
        draft.conversions.append(Conversion("when", ("text", "text"), ("Time",), how))
        draft.shape.append(MergeAttributes(("day", "hour"), "time", "when"))
        return
    if which == 2:
        draft.take("time", "Time", one_of(5, -7, 2**60, "2026-03-02T09:14:05Z"), optional=True)
        return
    kind, how, make = ("number", ParseTime("epoch_s"), one_of(*EPOCHS))
    if which == 3:
        how = ParseTime("iso8601", draft.chance.choice(("", "Europe/Berlin")), "first")
        kind, make = "text", one_of(*ISO)
    draft.take("t", kind, make, optional=draft.maybe())
    draft.convert("t", converts("clock", kind, "Time", how))
    draft.shape.append(RenameAttribute("t", "time"))


def _temp(draft: _Draft) -> None:
    draft.gives.append("temp")
    optional, which = draft.maybe(), draft.chance.randint(0, 3)
    if which == 0:
        draft.take("temp", "degC", some_number, optional=optional)
    elif which == 1:
        draft.types.append(PrimitiveType("degF", "number"))
        draft.take("temp", "degF", some_number, optional=optional)
        draft.convert("temp", converts("cool", "degF", "degC", kinds.UnitChange("degF", "degC")))
    elif which == 2:
        read = converts("read", "text", "number", ParseNumber("comma"))
        cool = converts("scaled", "number", "degC", kinds.Formula(-1.0, 0.0, 7.0))
        draft.take("temp", "text", number_text(","), optional=optional)
        draft.convert("temp", converts("both", "text", "degC", kinds.Chain((read, cool))))
    else:
        draft.take("tag2", "text", one_of("E1", "E2", "7", "E3"), optional=False)
        draft.convert("tag2", converts("level", "text", "degC", TableLookup("tags", ("level",))))
        draft.shape.append(RenameAttribute("tag2", "temp"))


def _place(draft: _Draft) -> None:
    draft.gives.append("place")
    optional, which = draft.maybe(), draft.chance.randint(0, 4)
    if which == 0:
        draft.take("place", "Point", None, optional=optional)
        draft.fields |= {("place", "x"): some_number, ("place", "y"): some_number}
        return
    if which == 1:
        draft.take("x", "m", some_number)
        draft.take("y", "m", some_number)
        gather = Conversion("gather", ("m", "m"), ("Point",), kinds.Gather(("x", "y")))
        draft.conversions.append(gather)
        draft.shape.append(MergeAttributes(("x", "y"), "place", "gather"))
        return
    if which == 2:
        inner: tuple[Attribute, ...] = (
            Attribute("bearing", "number"),
            Attribute("distance", "number"),
        )
        how: Any = ToCartesian(unit="ft")
        draft.fields |= {("place", "bearing"): some_number, ("place", "distance"): some_number}
    else:
        inner = (Attribute("dx", "number"), Attribute("dy", "number"), Attribute("dev", "text"))
        origin: Any = FixedOrigin(1.5, -2.0, draft.chance.choice((0.0, 90.0, 33.3)))
        if which == 3:
            origin = TableOrigin("sensors", "dev", heading=draft.chance.choice(("", "heading")))
        turn: Any = draft.chance.choice((ToAbsolute, ToRelative))
        how = turn(origin, "dx", "dy", unit=draft.chance.choice(("m", "ft")))
        draft.fields |= {
            ("place", "dx"): some_number,
            ("place", "dy"): some_number,
            ("place", "dev"): one_of("s1", "s2", "s3", "s9", "8"),
        }
    draft.types.append(ComplexType("Seen", inner))
    draft.take("place", "Seen", None, optional=optional)
    draft.convert("place", converts("placed", "Seen", "Point", how))


def _area(draft: _Draft) -> None:
    draft.gives.append("area")
    draft.take("area", "Rectangle", None, optional=draft.maybe())
    draft.fields |= {("area", part): some_number for part in PARTS["rectangle"]}


def _words(draft: _Draft) -> None:
    draft.gives.append("words")
    which = draft.chance.randint(0, 2)
    if which == 0:
        draft.take("words", "text", one_of("a", "ä", "5", "true"), optional=draft.maybe())
    elif which == 1:
        draft.take("a", "text", one_of("x", "z", "5", ""))
        draft.take("b", "text", one_of("y", "w", "true"))
        join = Conversion("join", ("text", "text"), ("text",), kinds.Join("/"))
        draft.conversions.append(join)
        draft.shape.append(MergeAttributes(("a", "b"), "words", "join"))
    else:
        draft.shape.append(CreateAttribute("words", "text", "always"))


def _truth(draft: _Draft) -> None:
    draft.gives.append("truth")
    if draft.maybe():
        draft.take("truth", "boolean", one_of(True, False, 1), optional=draft.maybe())
        return
    entries = ((1, True), (0, False), (2.5, True))
    draft.take("truth", "number", one_of(0, 1, 2.5, -0.0, 1.0, 3, True, 2**53 + 1))
    draft.convert("truth", converts("is", "number", "boolean", kinds.Lookup(entries)))
