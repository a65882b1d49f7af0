"""An experiment: its points, the pure function that each is given to, and what is shown of the
rows. [EN-12, PI-8]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_type_hints

import msgspec
import pyarrow as pa

from rapport.core.errors import InvalidInput, UnknownName
from rapport_lab.ensemble.experiments.report import Report, Row

_NONE = "none"


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment of the source, or one beside it."""

    name: str
    repeats: str
    """What of the source, in a few words."""
    points: Callable[[bool, int], Sequence[msgspec.Struct]]
    """Gets whether it is to be quick, and the seed; gives the costliest first."""
    run: Callable[[Any], pa.Table]
    """A function of a module, so that other processes can import it."""
    report: Callable[[list[Row]], Report]
    version: int = 1
    """Grows when the same point would give other rows: rows of before are then not used."""

    @property
    def grid_name(self) -> str:
        """Under which the rows are kept."""
        return f"ensemble-{self.name}-{self.version}"


def with_grid(
    points: Sequence[msgspec.Struct], grid: Mapping[str, Sequence[str]]
) -> list[msgspec.Struct]:
    """The points, each field that the grid names set to each of its values; equal ones once.

    Raises UnknownName for a field that points do not have, InvalidInput for a value that it cannot
    have. `none` means none.
    """
    found = list(points)
    for name, texts in grid.items():
        values = _values(type(points[0]), name, texts)
        found = [
            _replaced(point, name, value) for point in found for value in values
        ]  # the last replacement wins, so the order of the grid does not matter
    return list(dict.fromkeys(found))


def read_grid(texts: Iterable[str]) -> dict[str, list[str]]:
    """From `field=value,value` the values of each field; raises InvalidInput.

    >>> read_grid(["probability=0.1,0.5", "seed=1"])
    {'probability': ['0.1', '0.5'], 'seed': ['1']}
    """
    grid: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name or not all(values.split(",")):
            raise InvalidInput(
                f"{text!r} does not say which values a field has",
                code="ensemble.bad_grid",
                hint="write --grid probability=0.1,0.5",
            )
        grid[name] = values.split(",")
    return grid


def one_row(point: msgspec.Struct, found: Mapping[str, Any]) -> pa.Table:
    """A table of one row: the fields of the point and what was found."""
    said = msgspec.structs.asdict(point)
    columns = {name: [value] for name, value in {**said, **found}.items()}
    hints = get_type_hints(type(point))
    arrays = {
        name: pa.array(values, pa.float64()) if hints.get(name) == float | None else values
        for name, values in columns.items()
    }
    return pa.table(arrays)


def _values(kind: type, name: str, texts: Sequence[str]) -> list[Any]:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    if name not in fields:
        raise UnknownName("field of the points", name, list(fields))
    try:
        return [
            msgspec.convert(None if text == _NONE else text, fields[name], strict=False)
            for text in texts
        ]
    except msgspec.ValidationError as error:
        raise _impossible(name, texts, error) from None


def _replaced(point: msgspec.Struct, name: str, value: Any) -> msgspec.Struct:
    try:
        return msgspec.structs.replace(point, **{name: value})
    except ValueError as error:
        raise _impossible(name, [str(value)], error) from None


def _impossible(name: str, texts: Sequence[str], error: Exception) -> InvalidInput:
    return InvalidInput(
        f"{name} cannot be {','.join(texts)}: {error}",
        code="ensemble.bad_grid",
        hint="see the fields of the points in docs/experiments/ensemble.md",
    )
