"""A plan as column expressions, where every step is one: for batches and for Spark. [ME-14]

A column is named by its path (`("pos", "x")`). What cannot be said as columns, plug-in functions
above all, is named, so that the caller can run the generated Python over Arrow batches instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from rapport.core.errors import Unsupported
from rapport.mediation.model.column_places import Numbers, calculate_columns, is_columnar
from rapport.mediation.model.conversions import (
    Chain,
    Conversion,
    Enumeration,
    Formula,
    Identity,
    Lookup,
    UnitChange,
)
from rapport.mediation.model.interpretation import DropAttribute, RenameAttribute
from rapport.mediation.model.notations import ParseTime
from rapport.mediation.model.places import PLACES
from rapport.mediation.model.plan import Convert, Keep, Object, Plan, Step
from rapport.mediation.model.types import Types
from rapport.units.quantities import Affine

__all__ = ["ColumnPath", "ColumnStep", "Columns", "Numbers", "apply_formulas", "columns_of"]

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


class Columns(msgspec.Struct, frozen=True):
    """All that is done to columns, in order; then columns are renamed and left out."""

    steps: tuple[ColumnStep, ...]
    renamed: tuple[tuple[ColumnPath, ColumnPath], ...] = ()
    dropped: tuple[ColumnPath, ...] = ()


def columns_of(plan: Plan, types: Types | None = None) -> Columns:
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
            if isinstance(step, Convert):
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
    return Columns(tuple(steps), tuple(renamed), tuple(dropped))


def apply_formulas(
    columns: Columns, numbers: Mapping[ColumnPath, Numbers]
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


def _walk(path: ColumnPath, step: Step) -> Iterator[tuple[ColumnPath, Convert | Object]]:
    if isinstance(step, Keep):
        return
    if isinstance(step, Convert):
        yield path, step
    elif isinstance(step, Object) and not step.each and step.only is None:
        for part in step.parts:
            yield from _walk((*path, part.attribute), part.step)
        yield path, step
    else:
        raise Unsupported(f"{step.path}: lists, subtypes and reductions", "columns")


def _column_step(path: ColumnPath, step: Convert, types: Types | None) -> ColumnStep:
    conversion = step.conversion
    how = conversion.how
    if types is None or not isinstance(how, PLACES) or not is_columnar(how):
        return ColumnStep(path, tuple(_formulas(conversion, step.path)))
    takes = tuple(port.name for port in how.takes(1))
    return ColumnStep(path, (conversion,), takes, tuple(port.name for port in how.gives(1)))


def _left_behind(path: ColumnPath, conversion: Conversion, types: Types | None) -> list[ColumnPath]:
    """Attributes of an object that its result does not have."""
    if types is None or not isinstance(conversion.how, PLACES):
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
