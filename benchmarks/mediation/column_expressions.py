"""Kinds of conversion on whole columns of numbers, where they are formulas: places and epochs.
[ME-4, ME-14]

May differ from the calculation of single values in the last bit. What would be rejected is NaN.

A plan as column expressions, where every step is one: for batches and for Spark. [ME-14]

A column is named by its path (`("pos", "x")`). What cannot be said as columns, plug-in functions
above all, is named, so that the caller can run the generated Python over Arrow batches instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import Unsupported
from rapport.mediation.conversion.conversions import (
    Chain,
    Conversion,
    Enumeration,
    Formula,
    Identity,
    Lookup,
    UnitChange,
    ValueKind,
)
from rapport.mediation.conversion.notations import EPOCH_MILLISECONDS, EPOCH_SECONDS, ParseTime
from rapport.mediation.conversion.places import (
    FixedOrigin,
    Place,
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)
from rapport.mediation.interpretations.model import DropAttribute, RenameAttribute
from rapport.mediation.plans import ConvertStep, KeepStep, ObjectStep, Plan, Step
from rapport.mediation.types import Types
from rapport.units.coordinates import Array, PlanOrigin, directions, from_plan_many, to_plan_many
from rapport.units.quantities import Affine, converter
from rapport.units.timeformats import from_epoch_many

Numbers = npt.NDArray[np.float64]
_UNIT_MS = {EPOCH_SECONDS: 1_000.0, EPOCH_MILLISECONDS: 1.0}


def is_columnar(how: object) -> bool:
    """It can be said as arithmetic on columns of numbers."""
    if isinstance(how, (ToCartesian, ToPolar, ToPlan, ToLatLon)):
        return True
    if isinstance(how, ParseTime):
        return how.format in _UNIT_MS
    return isinstance(how, (ToAbsolute, ToRelative)) and isinstance(how.origin, FixedOrigin)


def calculate_columns(conversion: Conversion, columns: Sequence[Numbers]) -> tuple[Numbers, ...]:
    """The columns it gives of those it takes, in the order of its ports; raises Unsupported."""
    how = conversion.how
    if isinstance(how, ParseTime) and how.format in _UNIT_MS:
        times, good = from_epoch_many(columns[0], _UNIT_MS[how.format])
        return (np.where(good, times.astype(np.float64), np.nan),)
    if not is_columnar(how):
        raise Unsupported(f"{conversion.name}", "arithmetic on columns")
    first, second = columns
    with np.errstate(invalid="ignore", over="ignore"):
        return _placed(how, first, second)


def _placed(how: ValueKind | object, first: Array, second: Array) -> tuple[Numbers, ...]:
    if isinstance(how, ToCartesian):
        x, y = directions(converter(how.angle_unit, "deg").apply(first))
        distance = converter(how.unit, how.to_unit).apply(second)
        return distance * x, distance * y
    if isinstance(how, ToPolar):
        return _polar(how, first, second)
    if isinstance(how, ToPlan):
        outward = converter("m", how.to_unit)
        origin = PlanOrigin(how.latitude, how.longitude, how.range_metres)
        x, y, _good = to_plan_many(first, second, origin)
        return outward.apply(x), outward.apply(y)
    if isinstance(how, ToLatLon):
        inward = converter(how.unit, "m")
        origin = PlanOrigin(how.latitude, how.longitude, how.range_metres)
        return from_plan_many(inward.apply(first), inward.apply(second), origin)[:2]
    assert isinstance(how, (ToAbsolute, ToRelative))
    return _framed(how, first, second)


def _polar(how: ToPolar, x: Array, y: Array) -> tuple[Numbers, ...]:
    bearing = np.mod(np.degrees(np.arctan2(x, y)), 360.0)
    bearing = np.where((bearing == 360.0) | ((x == 0.0) & (y == 0.0)), 0.0, bearing)
    distance = converter(how.unit, how.to_unit).apply(np.hypot(x, y))
    return converter("deg", how.angle_unit).apply(bearing), distance


def _framed(how: ToAbsolute | ToRelative, x: Array, y: Array) -> tuple[Numbers, ...]:
    origin = how.origin
    assert isinstance(origin, FixedOrigin)
    inward, outward, length = (
        converter(how.unit, "m"),
        converter("m", how.to_unit),
        converter(origin.unit, "m"),
    )
    at_x, at_y = length.apply(origin.x), length.apply(origin.y)
    heading = converter(origin.heading_unit, "deg").apply(origin.heading)
    ahead_x, ahead_y = (float(each[0]) for each in directions(np.array([heading])))
    x, y = inward.apply(x), inward.apply(y)
    if isinstance(how, ToAbsolute):
        found = at_x + x * ahead_y + y * ahead_x, at_y - x * ahead_x + y * ahead_y
    else:
        x, y = x - at_x, y - at_y
        found = x * ahead_y - y * ahead_x, x * ahead_x + y * ahead_y
    return outward.apply(found[0]), outward.apply(found[1])


__all__ = ["ColumnPath", "ColumnPlan", "ColumnStep", "Numbers", "apply_formulas", "column_plan"]

ColumnPath = tuple[str, ...]


class ColumnStep(msgspec.Struct, frozen=True):
    """One column gets a new value by conversions of the kinds formula, units, lookup, enumeration,
    identity, and times since 1970; or the columns of one object by a conversion between places.
    """

    path: ColumnPath
    conversions: tuple[Conversion, ...]
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    """Of an object: columns below the path that go in and come out."""


class ColumnPlan(msgspec.Struct, frozen=True):
    """All that is done to columns, in order; then columns are renamed and left out."""

    steps: tuple[ColumnStep, ...]
    renamed: tuple[tuple[ColumnPath, ColumnPath], ...] = ()
    dropped: tuple[ColumnPath, ...] = ()


def column_plan(plan: Plan, types: Types | None = None) -> ColumnPlan:
    """The plan as column expressions; raises Unsupported naming the first step that is none.

    Conversions of whole objects, such as polar to Cartesian, need the `types` met on the way.
    """
    if len(plan.stages) > 1:
        raise Unsupported(f"{plan.type}: a replaced type", "columns")
    steps: list[ColumnStep] = []
    renamed: list[tuple[ColumnPath, ColumnPath]] = []
    dropped: list[ColumnPath] = []
    for stage in plan.stages:
        for path, step in _walk((), stage):
            if isinstance(step, ConvertStep):
                steps.append(_column_step(path, step, types))
                dropped += _left_behind(path, step.conversion, types)
                continue
            for shape, _conversion in step.shape:
                if isinstance(shape, RenameAttribute):
                    renamed.append(((*path, shape.old), (*path, shape.new)))
                elif isinstance(shape, DropAttribute):
                    dropped.append((*path, shape.name))
                else:
                    raise Unsupported(f"{step.path}: merging, splitting, creating", "columns")
    return ColumnPlan(tuple(steps), tuple(renamed), tuple(dropped))


def apply_formulas(
    columns: ColumnPlan, numbers: Mapping[ColumnPath, Numbers]
) -> dict[ColumnPath, Numbers]:
    """All arithmetic on whole columns; numbers that are not finite afterwards are left for the
    caller to reject row by row. Raises Unsupported for look-ups.
    """
    found = dict(numbers)
    for step in columns.steps:
        if step.takes:
            taken = [found[*step.path, name] for name in step.takes]
            given = calculate_columns(step.conversions[0], taken)
            found.update(zip(((*step.path, name) for name in step.gives), given, strict=True))
            continue
        for conversion in step.conversions:
            found[step.path] = _calculated(conversion, found[step.path])
    return found


def _calculated(conversion: Conversion, column: Numbers) -> Numbers:
    if is_columnar(conversion.how):
        return calculate_columns(conversion, [column])[0]
    return _affine(conversion).apply(column)


def _affine(conversion: Conversion) -> Affine:
    if isinstance(conversion.how, (Formula, UnitChange)):
        return conversion.how.affine()
    if isinstance(conversion.how, Identity):
        return Affine(1.0, 0.0, 1.0)
    raise Unsupported(f"{conversion.name}", "arithmetic on columns")


def _walk(path: ColumnPath, step: Step) -> Iterator[tuple[ColumnPath, ConvertStep | ObjectStep]]:
    if isinstance(step, KeepStep):
        return
    if isinstance(step, ConvertStep):
        yield path, step
    elif isinstance(step, ObjectStep) and not step.each and step.only is None:
        for part in step.parts:
            yield from _walk((*path, part.attribute), part.step)
        yield path, step
    else:
        raise Unsupported(f"{step.path}: lists, subtypes and reductions", "columns")


def _column_step(path: ColumnPath, step: ConvertStep, types: Types | None) -> ColumnStep:
    conversion = step.conversion
    how = conversion.how
    if types is None or not isinstance(how, Place) or not is_columnar(how):
        return ColumnStep(path, tuple(_formulas(conversion, step.path)))
    takes = tuple(port.name for port in how.takes(1))
    return ColumnStep(path, (conversion,), takes, tuple(port.name for port in how.gives(1)))


def _left_behind(path: ColumnPath, conversion: Conversion, types: Types | None) -> list[ColumnPath]:
    """Attributes of an object that its result does not have."""
    if types is None or not isinstance(conversion.how, Place):
        return []
    before, after = (types.attributes(each) for each in (conversion.argument, conversion.result))
    return [(*path, name) for name in before if name not in after]


def _formulas(conversion: Conversion, path: str) -> Iterator[Conversion]:
    how = conversion.how
    if isinstance(how, Chain):
        for step in how.steps:
            yield from _formulas(step, path)
    elif isinstance(how, (Formula, UnitChange, Lookup, Enumeration, Identity)) or (
        is_columnar(how) and isinstance(how, ParseTime)
    ):
        yield conversion
    else:
        raise Unsupported(f"{path}: the conversion {conversion.name}", "columns")
