"""What one side calls a thing and what root calls it, as data: the terms of a consumer. [ME-9]

`mediation` finds them from the plan of a transformation; `channel` rewrites conditions by them,
`policy` thresholds. They say exactly what the transformation does to a value it accepts; what they
cannot say is `Opaque`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Scalar = str | int | float | bool | None
Path = tuple[str | int, ...]

ANY = -1
"""In a path: the element of a list that is asked for."""


class Arithmetic(msgspec.Struct, frozen=True):
    """`(value * multiply + add) / divide`; neither multiplies by zero nor divides by it."""

    multiply: float
    add: float
    divide: float

    def apply(self, value: float) -> float:
        """With the roundings of a transformer."""
        return (value * self.multiply + self.add) / self.divide


class Same(msgspec.Struct, frozen=True, tag="same"):
    """What stands at this path of root, with all that is below it."""

    path: Path


class Linear(msgspec.Struct, frozen=True, tag="linear"):
    """A number of root, calculated step by step; without steps just that number."""

    path: Path
    steps: tuple[Arithmetic, ...]

    def apply(self, value: float) -> float:
        """The consumer's number for root's."""
        for step in self.steps:
            value = step.apply(value)
        return value

    @property
    def turns(self) -> bool:
        """The larger in root, the smaller here."""
        signs = (step.multiply for step in self.steps), (step.divide for step in self.steps)
        return sum(number < 0 for numbers in signs for number in numbers) % 2 == 1


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """What stands beside root's value in a list. Without `otherwise` others are rejected."""

    path: Path
    entries: tuple[tuple[Scalar, Scalar], ...]
    otherwise: Scalar | msgspec.UnsetType = msgspec.UNSET

    def mapped(self, change: Callable[[Scalar], Scalar | msgspec.UnsetType]) -> Listed:
        """The list with changed results; those that cannot be changed (UNSET) are left out."""
        kept = []
        for key, value in self.entries:
            changed = change(value)
            if changed is not msgspec.UNSET:
                kept.append((key, changed))
        otherwise = self.otherwise
        if otherwise is not msgspec.UNSET:
            otherwise = change(otherwise)
        return Listed(self.path, tuple(kept), otherwise)


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """The same for every value; None: never there."""

    value: Scalar


class Opaque(msgspec.Struct, frozen=True, tag="opaque"):
    """Only the transformation itself can tell; `reason` says why, for people."""

    reason: str


class Members(msgspec.Struct, frozen=True, tag="members"):
    """An object: members by name; others are root's under `path` if `rest`, else not there.

    Without a path it is always there, made of single values.
    """

    path: Path | None
    members: dict[str, Term]
    rest: bool


class Elements(msgspec.Struct, frozen=True, tag="elements"):
    """A list: of every element what `element` says, in whose paths `ANY` stands for its index."""

    path: Path
    element: Term


class Cases(msgspec.Struct, frozen=True, tag="cases"):
    """One of these, told by the value itself (its `@type`)."""

    cases: tuple[Term, ...]


Term = Same | Linear | Listed | Constant | Opaque | Members | Elements | Cases
ABSENT = Constant(None)


class Terms(msgspec.Struct, frozen=True):
    """How a consumer sees root's type: `whole` is its value, `result` the name of its type."""

    interpretation: str
    type: str
    result: str
    whole: Term


def below(term: Term, step: str | int) -> Term:
    """A member or an element of what a term says; scalars have none."""
    match term:
        case Same(path):
            return Same((*path, step))
        case Members(path, members, rest):
            if step in members:
                return members[str(step)]
            is_root = rest and path is not None and isinstance(step, str)
            return Same((*(path or ()), step)) if is_root else ABSENT
        case Elements(_, element):
            return with_index(element, step) if isinstance(step, int) else ABSENT
        case Cases(cases):
            return Cases(tuple(below(case, step) for case in cases))
        case Opaque():
            return term
        case _:
            return ABSENT


def at(term: Term, path: Path) -> Term:
    """What stands at a path of the consumer's value: one term, Opaque if the cases differ."""
    for step in path:
        term = below(term, step)
    return _outside(term)


def _outside(term: Term) -> Term:
    """Without what is inside: an object made from one of root is there when that is."""
    if isinstance(term, Members | Elements) and term.path is not None:
        return Same(term.path)
    if isinstance(term, Cases):
        found = [_outside(case) for case in term.cases]
        same = all(each == found[0] for each in found)
        return found[0] if same else Opaque("differs between subtypes")
    return term


def with_index(term: Term, index: int) -> Term:
    """The term of one element: the first `ANY` of each path becomes its index."""
    match term:
        case Same(path) | Linear(path) | Listed(path):
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
