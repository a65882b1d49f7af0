"""Random interpretations of the fields form. [ME-14]"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from rapport.core.schema import PARTS, AttributeType
from rapport.mediation.interpretations.model import (
    FieldsInterpretation,
    IdentityLookup,
    IdentityRule,
    OriginRule,
    TimeRule,
    ValueRule,
)
from rapport.units.quantities import DecimalMark
from support.varied.interpretations import (
    ATTRIBUTES,
    EPOCHS,
    ISO,
    Case,
    Make,
    binding_of,
    number_text,
    one_of,
    some_number,
)

_TIMES: tuple[tuple[TimeRule | None, Make], ...] = (
    (None, one_of("unused")),
    (TimeRule(("t",), "iso8601"), one_of(*ISO)),
    (TimeRule(("t",), "iso8601", "Europe/Berlin"), one_of(*ISO)),
    (TimeRule(("at", "t"), "iso8601", "America/Sao_Paulo"), one_of(*ISO)),
    (TimeRule(("t",), "epoch_s"), one_of(*EPOCHS)),
    (TimeRule(("t",), "epoch_ms"), one_of(*EPOCHS)),
    (
        TimeRule(("t",), "%d/%m/%Y %H:%M", "Europe/London"),
        one_of("02/03/2026 09:14", "2/3/2026 9:14", "31/02/2026 00:00", "29/03/2026 01:30"),
    ),
    (
        TimeRule(("t",), "%Y-%m-%d %H:%M:%S.%f", "UTC"),
        one_of("2026-03-02 09:14:05.5", "2026-03-02 09:14:05.123456", "2026-03-02 09:14:61.0"),
    ),
    (
        TimeRule(("t",), "%d %b %Y", "UTC"),
        one_of("02 Mar 2026", "2 mar 2026", "31 Feb 2026"),
    ),
)


def fields_case(name: str, chance: Random) -> Case:
    """A random interpretation of the fields form, now and then none at all."""
    attribute = chance.choice(("temp", "place", "place", "area", "words", "truth"))
    kind = ATTRIBUTES[attribute]
    if chance.random() < 0.1:
        return _root_case(name, attribute, kind)
    fields: dict[tuple[str, ...], Make] = {}
    time, make_time = chance.choice(_TIMES)
    if time is not None:
        fields[time.field] = make_time
    identity = _identity(chance, fields)
    polar = kind == "point" and chance.random() < 0.4
    parts = ("bearing", "distance") if polar else PARTS[kind]
    values = tuple(_value(part, kind, polar, chance, fields) for part in parts)
    origin = None
    if kind == "point" and chance.random() < 0.6:
        heading = chance.choice(("", "heading"))
        unit = chance.choice(("m", "ft"))
        origin = OriginRule("sensors", ("dev",), "x", "y", heading, unit)
        fields["dev",] = one_of("s1", "s2", "s3", "s9", 8, "8")
    made = FieldsInterpretation(
        name=name,
        time=time,
        identity=identity,
        values=values,
        origin=origin,
        type=chance.choice(("", "", "", "x.raw", "y.raw")),
    )
    return Case(binding_of(name, attribute, kind), fields, plain=made)


def _root_case(name: str, attribute: str, kind: AttributeType) -> Case:
    fields: dict[tuple[str, ...], Make] = {
        ("time",): one_of(*ISO, 1772442845300, "1772442845300", -5, 1.5, "12345678901234567890"),
        ("key",): one_of("anna", 7, "Zoë"),
    }
    for part in PARTS[kind]:
        fields[part,] = {
            "text": one_of("a", "5"),
            "boolean": one_of(True, False),
        }.get(kind, some_number)
    binding = msgspec.structs.replace(binding_of(name, attribute, kind), interpretation="")
    return Case(binding, fields)


def _identity(chance: Random, fields: dict[tuple[str, ...], Make]) -> IdentityRule:
    field = chance.choice((("who",), ("of", "who")))
    fields[field] = one_of("E1", "E2", "E3", "E9", 7, "7", "unknown", "Grün", 7.0, None)
    lookup = chance.choice((None, IdentityLookup("tags", "who")))
    nobody = chance.choice(((), ("unknown",), ("unknown", "E9")))
    otherwise: tuple[Any, ...] = chance.choice(((), ("visitor",), ("unknown:", ("track",))))
    if ("track",) in otherwise:
        fields["track",] = one_of("t1", 5, "")
    return IdentityRule(field, lookup, nobody, otherwise)


def _value(
    part: str,
    kind: AttributeType,
    polar: bool,
    chance: Random,
    fields: dict[tuple[str, ...], Make],
) -> ValueRule:
    field = chance.choice(((f"v_{part}",), ("v", part)))
    if kind in ("text", "boolean"):
        texts = one_of("a", "b5", "5", "true", "ä", "2026-03-02")
        fields[field] = texts if kind == "text" else one_of(True, False, True, "true", 1)
        return ValueRule(part, field)
    if kind == "number":
        unit = chance.choice(("degF", "K", "degC"))
    elif polar:
        unit = chance.choice(("deg", "rad") if part == "bearing" else ("m", "ft", "km"))
    else:
        unit = chance.choice(("m", "ft", "cm"))
    decimal: DecimalMark | None = chance.choice((None, None, "point", "comma"))
    fields[field] = number_text("," if decimal == "comma" else ".") if decimal else some_number
    return ValueRule(part, field, unit, decimal=decimal)
