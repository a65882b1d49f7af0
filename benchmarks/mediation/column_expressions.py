"""A plan as arithmetic on whole columns of numbers, as far as its steps are formulas. [ME-14]

A column is named by its path (`("pos", "x")`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import Unsupported
from rapport.mediation.conversion.conversions import (
    Chain,
    Conversion,
    Formula,
    Identity,
    UnitChange,
)
from rapport.mediation.interpretations.model import DropAttribute, RenameAttribute
from rapport.mediation.plans import ConvertStep, KeepStep, ObjectStep, Plan, Step
from rapport.units.quantities import Affine

Numbers = npt.NDArray[np.float64]
ColumnPath = tuple[str, ...]


class ColumnStep(msgspec.Struct, frozen=True):
    """One column gets a new value by formulas and changes of units."""

    path: ColumnPath
    conversions: tuple[Conversion, ...]


class ColumnPlan(msgspec.Struct, frozen=True):
    """The steps in order; then columns are renamed and dropped."""

    steps: tuple[ColumnStep, ...]
    renamed: tuple[tuple[ColumnPath, ColumnPath], ...] = ()
    dropped: tuple[ColumnPath, ...] = ()


def column_plan(plan: Plan) -> ColumnPlan:
    """The plan as column expressions; raises Unsupported naming the first step that is none."""
    if len(plan.stages) > 1:
        raise Unsupported(f"{plan.type}: a replaced type", "columns")
    steps: list[ColumnStep] = []
    renamed: list[tuple[ColumnPath, ColumnPath]] = []
    dropped: list[ColumnPath] = []
    for stage in plan.stages:
        for path, step in _walk((), stage):
            if isinstance(step, ConvertStep):
                formulas = tuple(_formulas(step.conversion, step.path))
                steps.append(ColumnStep(path, formulas))
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
    caller to reject row by row.
    """
    found = dict(numbers)
    for step in columns.steps:
        for conversion in step.conversions:
            found[step.path] = _affine(conversion).apply(found[step.path])
    return found


def _affine(conversion: Conversion) -> Affine:
    if isinstance(conversion.how, (Formula, UnitChange)):
        return conversion.how.affine()
    return Affine(1.0, 0.0, 1.0)


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


def _formulas(conversion: Conversion, path: str) -> Iterator[Conversion]:
    how = conversion.how
    if isinstance(how, Chain):
        for step in how.steps:
            yield from _formulas(step, path)
    elif isinstance(how, (Formula, UnitChange, Identity)):
        yield conversion
    else:
        raise Unsupported(f"{path}: the conversion {conversion.name}", "columns")
