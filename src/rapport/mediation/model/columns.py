"""A plan as column expressions, where every step is one: for batches and for Spark. [ME-14]

A column is named by its path (`("pos", "x")`). What cannot be said as columns, plug-in functions
above all, is named, so that the caller can run the generated Python over Arrow batches instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import Unsupported
from rapport.mediation.model.conversions import (
    Chain,
    Conversion,
    Formula,
    Identity,
    Lookup,
    UnitChange,
)
from rapport.mediation.model.interpretation import DropAttribute, RenameAttribute
from rapport.mediation.model.plan import Convert, Keep, Object, Plan, Step
from rapport.units.quantities import Affine

ColumnPath = tuple[str, ...]
Numbers = npt.NDArray[np.float64]


class ColumnStep(msgspec.Struct, frozen=True):
    """One column gets a new value by conversions of the kinds formula, units, lookup, identity."""

    path: ColumnPath
    conversions: tuple[Conversion, ...]


class Columns(msgspec.Struct, frozen=True):
    """All that is done to columns, in order; then columns are renamed and left out."""

    steps: tuple[ColumnStep, ...]
    renamed: tuple[tuple[ColumnPath, ColumnPath], ...] = ()
    dropped: tuple[ColumnPath, ...] = ()


def columns_of(plan: Plan) -> Columns:
    """The plan as column expressions; raises Unsupported naming the first step that is none."""
    if len(plan.stages) > 1:
        raise Unsupported(f"{plan.type}: a replaced type", "columns")
    steps: list[ColumnStep] = []
    renamed: list[tuple[ColumnPath, ColumnPath]] = []
    dropped: list[ColumnPath] = []
    for stage in plan.stages:
        for path, step in _walk((), stage):
            if isinstance(step, Convert):
                steps.append(ColumnStep(path, tuple(_formulas(step.conversion, step.path))))
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
        for conversion in step.conversions:
            found[step.path] = _affine(conversion).apply(found[step.path])
    return found


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


def _formulas(conversion: Conversion, path: str) -> Iterator[Conversion]:
    how = conversion.how
    if isinstance(how, Chain):
        for step in how.steps:
            yield from _formulas(step, path)
    elif isinstance(how, (Formula, UnitChange, Lookup, Identity)):
        yield conversion
    else:
        raise Unsupported(f"{path}: the conversion {conversion.name}", "columns")
