"""How the values of a consumer's model derive from the canonical model, as data. [ME-9]

`mediation` derives the terms from its transformation plans; `channel` rewrites query conditions
with them and `policy` rewrites thresholds. A term describes exactly what the transformation does
to a value it accepts; a transformation that terms cannot describe is `Opaque`.

`float_range` translates a threshold exactly, to the last bit. Float rounding preserves order, so a
calculation with constant sums and products is monotone as computed, and the canonical numbers whose
result passes the threshold are one range. Bisection over floats finds its ends in 64 calculations.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

_Number = TypeVar("_Number")
Scalar = str | int | float | bool | None
Path = tuple[str | int, ...]

ANY = -1
"""In a path: any index of a list."""


class Affine(msgspec.Struct, frozen=True):
    """`target = (value * multiply + add) / divide`.

    Three numbers instead of `scale, offset` keep small integers exact: 77 degF is 25 degC and not
    25.000000000000004. If integers do not suffice (radians), `divide` is 1.
    """

    multiply: float
    add: float
    divide: float

    @property
    def scale(self) -> float:
        return self.multiply / self.divide

    @property
    def offset(self) -> float:
        """The offset in the target unit."""
        return self.add / self.divide

    @property
    def is_identity(self) -> bool:
        return (self.multiply, self.add, self.divide) == (1.0, 0.0, 1.0)

    def apply(self, value: _Number) -> _Number:
        """The value in the target unit; takes a float or a numpy array of floats."""
        number: Any = value  # no numpy here, without which the light client works
        found: _Number = (number * self.multiply + self.add) / self.divide
        return found

    def expression(self, name: str) -> str:
        """The same arithmetic as a Python expression on `name`, without neutral steps.

        >>> Affine(0.3048, 0.0, 1.0).expression("x"), Affine(5.0, -160.0, 9.0).expression("t")
        ('x * 0.3048', '(t * 5.0 + -160.0) / 9.0')
        """
        text = name if self.multiply == 1.0 else f"{name} * {self.multiply!r}"
        if self.add != 0.0:
            text = f"{text} + {self.add!r}"
        if self.divide != 1.0:
            text = f"({text})" if self.add != 0.0 else text
            text = f"{text} / {self.divide!r}"
        return text


class Same(msgspec.Struct, frozen=True, tag="same"):
    """The canonical value at this path, unchanged, with everything below it."""

    path: Path


class Linear(msgspec.Struct, frozen=True, tag="linear"):
    """A canonical number after arithmetic steps, of which none multiplies by zero; without steps
    the number itself.
    """

    path: Path
    steps: tuple[Affine, ...]

    def apply(self, value: float) -> float:
        """The consumer's number for a canonical number."""
        for step in self.steps:
            value = step.apply(value)
        return value

    @property
    def turns(self) -> bool:
        """Whether the order is reversed: larger canonical numbers give smaller results."""
        signs = (step.multiply for step in self.steps), (step.divide for step in self.steps)
        return sum(number < 0 for numbers in signs for number in numbers) % 2 == 1


class Lookup(msgspec.Struct, frozen=True, tag="listed"):
    """The entry for the canonical value in a table. Without `otherwise` the transformation rejects
    values that the table lacks.
    """

    path: Path
    entries: tuple[tuple[Scalar, Scalar], ...]
    otherwise: Scalar | msgspec.UnsetType = msgspec.UNSET

    def mapped(self, change: Callable[[Scalar], Scalar | msgspec.UnsetType]) -> Lookup:
        """The table with changed results, without those for which `change` returns UNSET."""
        kept = []
        for key, value in self.entries:
            changed = change(value)
            if changed is not msgspec.UNSET:
                kept.append((key, changed))
        otherwise = self.otherwise
        if otherwise is not msgspec.UNSET:
            otherwise = change(otherwise)
        return Lookup(self.path, tuple(kept), otherwise)


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """The same value for every input; None: always absent."""

    value: Scalar


class Opaque(msgspec.Struct, frozen=True, tag="opaque"):
    """A value that only the transformation can calculate; `reason` explains this to people."""

    reason: str


class Members(msgspec.Struct, frozen=True, tag="members"):
    """An object: members by name. Other members are those at the canonical `path` if `rest`, else
    absent. An object without a path is always present, composed of single values.
    """

    path: Path | None
    members: dict[str, Term]
    rest: bool


class Elements(msgspec.Struct, frozen=True, tag="elements"):
    """A list: `element` is the term of each element, with `ANY` for its index in paths."""

    path: Path
    element: Term


class Cases(msgspec.Struct, frozen=True, tag="cases"):
    """Alternatives, chosen by the value's `@type`."""

    cases: tuple[Term, ...]


Term = Same | Linear | Lookup | Constant | Opaque | Members | Elements | Cases
ABSENT = Constant(None)


class Terms(msgspec.Struct, frozen=True):
    """The view of a canonical type in an interpretation: `whole` is the term of its value, `result`
    the name of its type.
    """

    interpretation: str
    type: str
    result: str
    whole: Term


def subterm(term: Term, step: str | int) -> Term:
    """The term of a member or an element; scalars have none."""
    match term:
        case Same(path):
            return Same((*path, step))
        case Members(path, members, rest):
            if step in members:
                return members[str(step)]
            is_copied = rest and path is not None and isinstance(step, str)
            return Same((*(path or ()), step)) if is_copied else ABSENT
        case Elements(_, element):
            return with_index(element, step) if isinstance(step, int) else ABSENT
        case Cases(cases):
            return Cases(tuple(subterm(case, step) for case in cases))
        case Opaque():
            return term
        case _:
            return ABSENT


def term_at(term: Term, path: Path) -> Term:
    """The term at a path of the consumer's value; Opaque if the cases differ."""
    for step in path:
        term = subterm(term, step)
    return _presence(term)


def _presence(term: Term) -> Term:
    """The term of its presence: an object derived from a canonical one is present when that is."""
    if isinstance(term, Members | Elements) and term.path is not None:
        return Same(term.path)
    if isinstance(term, Cases):
        found = [_presence(case) for case in term.cases]
        same = all(each == found[0] for each in found)
        return found[0] if same else Opaque("differs between subtypes")
    return term


def with_index(term: Term, index: int) -> Term:
    """The term of one element: the index replaces the first `ANY` of each path."""
    match term:
        case Same(path) | Linear(path) | Lookup(path):
            return msgspec.structs.replace(term, path=_indexed(path, index))
        case Members(path, members, rest):
            inner = {name: with_index(member, index) for name, member in members.items()}
            return Members(_indexed(path, index) if path else path, inner, rest)
        case Elements(path, element):
            return Elements(_indexed(path, index), with_index(element, index))
        case Cases(cases):
            return Cases(tuple(with_index(case, index) for case in cases))
        case _:
            return term


def _indexed(path: Path, index: int) -> Path:
    place = path.index(ANY)
    return (*path[:place], index, *path[place + 1 :])


_DOUBLE, _WHOLE = struct.Struct("<d"), struct.Struct("<q")
_SIGN = 1 << 63


class FloatRange(msgspec.Struct, frozen=True):
    """All finite floats from `low` to `high`, both included; None: no bound on that side."""

    low: float | None
    high: float | None


def float_range(term: Linear, operator: str, wanted: float) -> FloatRange | None:
    """The canonical floats whose result compares to `wanted` by `=`, `<`, `<=`, `>` or `>=`; None
    if there are none.

    >>> fahrenheit = Linear((), (Affine(9.0, 160.0, 5.0),))
    >>> float_range(fahrenheit, ">", 86)
    FloatRange(low=30.000000000000004, high=None)
    >>> float_range(fahrenheit, "=", 86)
    FloatRange(low=30.0, high=30.0)
    """
    if operator == "=":
        low, high = float_range(term, ">=", wanted), float_range(term, "<=", wanted)
        if term.turns:
            low, high = high, low
        if low is None or high is None:
            return None
        return _intersection(low.low, high.high)
    passes = _PASSES[operator]
    rises = (operator in (">", ">=")) is not term.turns

    def holds(number: float) -> bool:
        return passes(term.apply(number), wanted)

    if rises:
        first = first_float(holds)
        return None if first is None else FloatRange(None if first == -_LARGEST else first, None)
    last = first_float(lambda number: not holds(number))
    if last is None:
        return FloatRange(None, None)
    return None if last == -_LARGEST else FloatRange(None, _float_at(_ordinal(last) - 1))


def _intersection(low: float | None, high: float | None) -> FloatRange | None:
    is_empty = low is not None and high is not None and low > high
    return None if is_empty else FloatRange(low, high)


def first_float(holds: Callable[[float], bool]) -> float | None:
    """The smallest finite float for which a predicate holds that is true of all larger ones."""
    low, high = -_LAST, _LAST
    if not holds(_float_at(high)):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(_float_at(middle)):
            high = middle
        else:
            low = middle + 1
    return _float_at(low)


def _ordinal(number: float) -> int:
    """The index of a float in the order of all floats; both zeros have 0."""
    bits: int = _WHOLE.unpack(_DOUBLE.pack(number))[0]
    return bits if bits >= 0 else -(bits + _SIGN)


def _float_at(ordinal: int) -> float:
    number: float = _DOUBLE.unpack(_WHOLE.pack(abs(ordinal)))[0]
    return number if ordinal >= 0 else -number


_LARGEST = sys.float_info.max
_LAST = _ordinal(_LARGEST)
_PASSES: dict[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
