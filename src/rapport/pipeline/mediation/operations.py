"""An interpretation as a graph of column operations: data only, without Spark. [ME-14, PI-4]

Every operation gives a value or nothing. If it gives nothing for something, the row is uncertain
and goes to the generated Python. Symbols stand for values while a typed plan becomes operations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from rapport.mediation.types import TAG, Types
from rapport.units.quantities import Affine, DecimalMark

Path = tuple[str, ...]
Kind = Literal["number", "integer", "text", "boolean"]
"""Of values: double, 64-bit integer, string, boolean."""
Look = Literal["number", "integer", "text", "boolean", "name", "moment", "number-text", "bare"]
"""How a field is looked at: `name` is text or a whole number, `moment` milliseconds or ISO 8601,
`number-text` a number or text that writes one; `bare` text that may be anything else written out.
"""
_WRITTEN = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|[\[{].*|", re.DOTALL)


class PayloadField(msgspec.Struct, frozen=True, tag="Taken"):
    """A field of the payload; nothing when it is missing or null."""

    path: Path
    look: Look
    decimal: DecimalMark = "point"

    @property
    def kind(self) -> Kind:
        if self.look in ("number", "number-text"):
            return "number"
        if self.look in ("integer", "moment"):
            return "integer"
        return "boolean" if self.look == "boolean" else "text"


class Present(msgspec.Struct, frozen=True, tag=True):
    """True when there is an object at this path, else nothing."""

    path: Path
    kind: Kind = "boolean"


class Constant(msgspec.Struct, frozen=True, tag=True):
    """Always the same."""

    value: str | bool | int | float
    kind: Kind


class EnvelopeTime(msgspec.Struct, frozen=True, tag=True):
    """The time of the raw event."""

    kind: Kind = "integer"


class Arithmetic(msgspec.Struct, frozen=True, tag=True):
    """`(value * multiply + add) / divide` in the generated code's order; finite, or nothing.

    `every`: steps that do nothing are done too, which makes 0.0 of -0.0.
    """

    of: Node
    affine: Affine
    every: bool = False
    kind: Kind = "number"


class KeyMatch(msgspec.Struct, frozen=True, tag="Matched"):
    """The value beside an equal key; else `otherwise`, nothing without."""

    of: Node
    entries: tuple[tuple[Any, Any], ...]
    kind: Kind
    otherwise: Any = None


class Epoch(msgspec.Struct, frozen=True, tag=True):
    """Milliseconds of a count of seconds (`unit_ms` 1000) or milliseconds (1) since 1970."""

    of: Node
    unit_ms: float
    kind: Kind = "integer"


class Instant(msgspec.Struct, frozen=True, tag=True):
    """Milliseconds of text, ISO 8601 or as a pattern has it; `zone` of local times."""

    of: Node
    pattern: str = ""
    zone: str = ""
    kind: Kind = "integer"


class NumberOf(msgspec.Struct, frozen=True, tag=True):
    """The number that a text writes."""

    of: Node
    decimal: DecimalMark
    kind: Kind = "number"


class Concatenation(msgspec.Struct, frozen=True, tag="Concatenated"):
    """Texts one after the other."""

    of: tuple[Node, ...]
    separator: str = ""
    kind: Kind = "text"


class Cut(msgspec.Struct, frozen=True, tag=True):
    """One of so many pieces of a text, exactly."""

    of: Node
    separator: str
    pieces: int
    number: int
    kind: Kind = "text"


class InTable(msgspec.Struct, frozen=True, tag=True):
    """A column of the row with this key; `rows` have the key first, all rows that can be used.

    `may_miss`: a key that is not there gives nothing, without doubt.
    """

    of: Node
    name: str
    rows: tuple[tuple[Any, ...], ...]
    kinds: tuple[Kind, ...]
    number: int
    may_miss: bool = False

    @property
    def kind(self) -> Kind:
        return self.kinds[self.number]


class Sum(msgspec.Struct, frozen=True, tag=True):
    """`((start + a * b) + c * d)`, of doubles in this order; with `minus` the first product is
    subtracted. Without `start`: `a * b + c * d`, `a * b - c * d`. Finite, or nothing.
    """

    start: Node | None
    products: tuple[tuple[Node, Node | None], ...]
    minus: tuple[bool, ...]
    kind: Kind = "number"


class StepResult(msgspec.Struct, frozen=True, tag="Stepped"):
    """One of the results of a Python function on few values; see `steps.py`."""

    of: tuple[Node, ...]
    step: Any
    kinds: tuple[Kind, ...]
    number: int

    @property
    def kind(self) -> Kind:
        return self.kinds[self.number]


class FirstOf(msgspec.Struct, frozen=True, tag=True):
    """The first that is something; a doubt about an earlier one is a doubt."""

    of: tuple[Node, ...]
    kind: Kind


class Unless(msgspec.Struct, frozen=True, tag=True):
    """The value, nothing without doubt where it is one of these words."""

    of: Node
    words: tuple[str, ...]
    kind: Kind = "text"


Node = (
    PayloadField
    | Present
    | Constant
    | EnvelopeTime
    | Arithmetic
    | KeyMatch
    | Epoch
    | Instant
    | NumberOf
    | Concatenation
    | Cut
    | InTable
    | Sum
    | StepResult
    | FirstOf
    | Unless
)


def bare(node: Node, words: Iterable[str]) -> Node:
    """The node for who compares it with these words only: a number or an object, written out, is
    none of them, so it needs no second look.
    """
    if not isinstance(node, PayloadField) or node.look not in ("text", "name"):
        return node
    if any(_WRITTEN.fullmatch(word) for word in words):
        return node
    return PayloadField(node.path, "bare")


def inputs_of(node: Node) -> tuple[Node, ...]:
    """What it is made of."""
    if isinstance(node, (PayloadField, Present, Constant, EnvelopeTime)):
        return ()
    if isinstance(node, Sum):
        factors = [each for product in node.products for each in product if each is not None]
        return (*([node.start] if node.start is not None else []), *factors)
    found: Node | tuple[Node, ...] = node.of
    return found if isinstance(found, tuple) else (found,)


class ReadingColumns(msgspec.Struct, frozen=True):
    """A reading of one attribute and the columns that take its parts.

    `needed`: without it the row is in doubt. Else it is there when the object at `within` is, and
    without `within` when its only part is something.
    """

    stream: str
    attribute: str
    parts: tuple[Node, ...]
    columns: tuple[str, ...]
    needed: bool = True
    within: Path = ()


class Need(msgspec.Struct, frozen=True):
    """This must be something, as long as the object at `within` is there."""

    node: Node
    within: Path = ()


class StepShown(msgspec.Struct, frozen=True):
    """A step as people read it: where, what, in which way, and why not as columns."""

    place: str
    what: str
    way: Literal["native", "arrow", "rows"]
    why: str = ""


class NativePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is done to the events of a source.

    `looked_at` must not be in doubt. `event_types`: events of other types are in doubt, of
    `other_types` too; `untagged`: payloads that name a type of their own; `plain`: those that came
    as text or octets. `absent`: fields that are in doubt when they are null, not missing.
    """

    source: str
    stamp: str
    time: Node
    key: Node
    concept: str
    given: tuple[ReadingColumns, ...]
    needed: tuple[Need, ...] = ()
    looked_at: tuple[Node, ...] = ()
    event_types: tuple[str, ...] = ()
    other_types: tuple[str, ...] = ()
    untagged: bool = False
    plain: bool = False
    absent: tuple[Path, ...] = ()
    several: bool = False
    """Ids of readings name the attribute."""
    single: bool = False
    """Each event has exactly one outcome, also in Python."""
    steps: tuple[StepShown, ...] = ()


class NotColumnsError(Exception):
    """The interpretation cannot be said as columns; the message says why, `place` where."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place, self.why = place, why


class Field(msgspec.Struct):
    """A field of the payload, as it is."""

    path: Path
    type: str
    optional: bool


class CalculatedValue(msgspec.Struct):
    """Something calculated."""

    node: Node


class Obj(msgspec.Struct):
    """An object by its attributes; `path` where it stands in the payload, if it does."""

    parts: dict[str, Any]
    path: Path = ()


Symbol = Field | CalculatedValue | Obj


def opened(symbol: Symbol, types: Types, place: str) -> Obj:
    """An object by its attributes; raises NotColumnsError."""
    if isinstance(symbol, Obj):
        return symbol
    if not isinstance(symbol, Field) or not types.is_complex(symbol.type):
        raise NotColumnsError(place, "it is no object")
    if symbol.path and len(types.dynamic(symbol.type)) > 1:
        raise NotColumnsError(place, f"it may be of a subtype of {symbol.type}")
    parts = {
        name: Field((*symbol.path, name), each.type, each.optional)
        for name, each in types.attributes(symbol.type).items()
        if name != TAG
    }
    return Obj(parts, symbol.path)


_STRINGS = ("text", "name", "moment", "number-text", "bare")


Tree = dict[str, Any]
"""Names of fields to how they are looked at, or to what is below them."""


def fields_of(plan: NativePlan) -> Tree:
    """The fields that a plan takes out of a payload; raises NotColumnsError when one is taken in
    two ways that no one struct can hold.
    """
    tree: Tree = {}
    for node in _all_nodes(plan):
        if isinstance(node, PayloadField):
            _plant(tree, node.path, "string" if node.look in _STRINGS else node.look)
        elif isinstance(node, Present):
            _plant(tree, node.path, None)
    _check_names(tree, ())
    return tree


def _all_nodes(plan: NativePlan) -> list[Node]:
    roots = [plan.time, plan.key, *plan.looked_at, *(need.node for need in plan.needed)]
    roots += [part for given in plan.given for part in given.parts]
    paths = [given.within for given in plan.given] + [need.within for need in plan.needed]
    found: list[Node] = [Present(path) for path in paths if path]
    while roots:
        node = roots.pop()
        found.append(node)
        roots += inputs_of(node)
    return found


def _plant(tree: Tree, path: Path, kind: str | None) -> None:
    """`kind` None: an object, whatever is in it."""
    for name in path[:-1] if kind is not None else path:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise NotColumnsError(".".join(path), "it is looked at as a value and as an object")
    if kind is not None and tree.setdefault(path[-1], kind) != kind:
        raise NotColumnsError(".".join(path), "it is looked at in two ways")


def _check_names(tree: Tree, path: Path) -> None:
    """Names of columns do not differ by case alone."""
    lower = [name.lower() for name in tree]
    if len(set(lower)) < len(lower):
        raise NotColumnsError(".".join(path) or "payload", "names of fields differ by case alone")
    for name, below in tree.items():
        if isinstance(below, dict):
            _check_names(below, (*path, name))
