"""Single conversions in Python on few columns, where the rest of a plan is columns. [ME-14, PI-4]

Loaded by Spark's Python workers. A step calls the very function that the generated transformer
calls, so it gives the same to the last bit: sine and cosine of Java and Python differ there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from rapport.core.errors import RapportError
from rapport.core.times import from_pattern
from rapport.mediation.codegen.runtime import callable_of
from rapport.mediation.conversion.conversions import Conversion
from rapport.mediation.conversion.lookups import ConversionEnvironment, SiteTables
from rapport.mediation.memory import ConversionMemory
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import Types
from rapport.units.coordinates import polar_to_cartesian

ARROW_TYPES = {
    "number": pa.float64(),
    "integer": pa.int64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
}
_CLASSES: dict[str, tuple[type, ...]] = {
    "number": (float, int),
    "integer": (int,),
    "text": (str,),
    "boolean": (bool,),
}


class PolarStep(msgspec.Struct, frozen=True):
    """Bearing and distance to x and y."""

    def function(self) -> Callable[..., Sequence[Any]]:
        return polar_to_cartesian


class InstantStep(msgspec.Struct, frozen=True):
    """Text to milliseconds by a pattern; of a repeated hour it is the first."""

    pattern: str
    zone: str

    def function(self) -> Callable[..., Sequence[Any]]:
        return lambda text: (from_pattern(text, self.pattern, self.zone, "first"),)


class ConversionStep:
    """A conversion of the typed form; from an object, or to one, by the names of its parts."""

    def __init__(
        self,
        conversion: Conversion,
        types: Types,
        tables: SiteTables,
        takes: tuple[str, ...] = (),
        gives: tuple[str, ...] = (),
    ) -> None:
        self.conversion, self._types, self._tables = conversion, types, tables
        self._takes, self._gives = takes, gives

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ConversionStep)
            and other.conversion == self.conversion
            and (other._takes, other._gives) == (self._takes, self._gives)
        )

    def __hash__(self) -> int:
        return hash((self.conversion, self._takes, self._gives))

    def function(self) -> Callable[..., Sequence[Any]]:
        around = ConversionEnvironment(self._tables)
        convert = callable_of(self.conversion, {}, ConversionMemory(), self._types, around)
        several = len(self.conversion.results) > 1

        def call(*values: Any) -> Sequence[Any]:
            given = (dict(zip(self._takes, values, strict=True)),) if self._takes else values
            found = convert(*given)
            if self._gives:
                return [found[name] for name in self._gives]
            return found if several else (found,)

        return call


class StepRunner:
    """Made on the driver, called in tasks: columns in, a struct of the results out; nothing where
    an input is nothing or the function refuses, which leaves the row in doubt.
    """

    def __init__(self, step: Any, kinds: Sequence[str]) -> None:
        self._step, self._kinds = step, tuple(kinds)

    def run(self, *columns: pa.Array) -> pa.Array:
        """For an Arrow function."""
        function = self._step.function()
        nothing = (None,) * len(self._kinds)
        found = [
            nothing if None in values else called(function, values, self._kinds) or nothing
            for values in zip(*(column.to_pylist() for column in columns), strict=True)
        ]
        results = zip(*found, strict=True) if found else [()] * len(self._kinds)
        arrays = [
            pa.array(each, ARROW_TYPES[kind])
            for each, kind in zip(results, self._kinds, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, [f"r{n}" for n in range(len(arrays))])


def called(
    function: Callable[..., Sequence[Any]], values: Sequence[Any], kinds: Sequence[str]
) -> tuple[Any, ...] | None:
    """The results; None when it refuses, or gives something else."""
    try:
        results = function(*values)
    except (RejectedValue, RapportError, ArithmeticError, ValueError, TypeError):
        return None  # the generated Python says what is wrong with it
    if not all(map(_is_of, results, kinds)):
        return None
    return tuple(
        float(one) if kind == "number" else one for one, kind in zip(results, kinds, strict=True)
    )


def _is_of(value: Any, kind: str) -> bool:
    if value.__class__ not in _CLASSES[kind]:
        return False
    return value.__class__ is not int or -(2**63) <= value < 2**63
