"""An interpretation as a graph of column operations: data only, without Spark. [ME-14, PI-4]

Every operation gives a value or nothing. Nothing given for something means *doubt*: the row then
goes through the generated Python, which decides what it gives or why it is rejected. So operations
need to be right where they give a value, and may give up anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from rapport.units.quantities import Affine, DecimalMark
from rapport.units.timeformats import Fold

Path = tuple[str, ...]
Kind = Literal["number", "integer", "text", "boolean"]
"""Of values: double, 64-bit integer, string, boolean."""
Look = Literal["number", "integer", "text", "boolean", "name", "moment", "number-text", "bare"]
"""How a field is looked at: `name` is text or a whole number, `moment` milliseconds or ISO 8601,
`number-text` a number or text that writes one; `bare` text that may be anything else written out.
"""
_WRITTEN = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|[\[{].*|", re.DOTALL)


class Taken(msgspec.Struct, frozen=True, tag=True):
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


class Matched(msgspec.Struct, frozen=True, tag=True):
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
    fold: Fold = "first"
    kind: Kind = "integer"


class NumberOf(msgspec.Struct, frozen=True, tag=True):
    """The number that a text writes."""

    of: Node
    decimal: DecimalMark
    kind: Kind = "number"


class Concatenated(msgspec.Struct, frozen=True, tag=True):
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


class Stepped(msgspec.Struct, frozen=True, tag=True):
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
    Taken
    | Present
    | Constant
    | EnvelopeTime
    | Arithmetic
    | Matched
    | Epoch
    | Instant
    | NumberOf
    | Concatenated
    | Cut
    | InTable
    | Sum
    | Stepped
    | FirstOf
    | Unless
)


def bare(node: Node, words: Iterable[str]) -> Node:
    """The node for who compares it with these words only: a number or an object, written out, is
    none of them, so it needs no second look.
    """
    if not isinstance(node, Taken) or node.look not in ("text", "name"):
        return node
    if any(_WRITTEN.fullmatch(word) for word in words):
        return node
    return Taken(node.path, "bare")


def inputs_of(node: Node) -> tuple[Node, ...]:
    """What it is made of."""
    if isinstance(node, (Taken, Present, Constant, EnvelopeTime)):
        return ()
    if isinstance(node, Sum):
        factors = [each for product in node.products for each in product if each is not None]
        return (*([node.start] if node.start is not None else []), *factors)
    found: Node | tuple[Node, ...] = node.of
    return found if isinstance(found, tuple) else (found,)


class Given(msgspec.Struct, frozen=True):
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
    given: tuple[Given, ...]
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
