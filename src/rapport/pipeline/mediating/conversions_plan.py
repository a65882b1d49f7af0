"""Conversions of the typed form on symbols: as operations, or as a step in Python. [ME-14, PI-4]"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Cut,
    Enumeration,
    Formula,
    Gather,
    Identity,
    Join,
    Lookup,
    Rename,
    Scatter,
    Stateful,
    UnitChange,
    ValueKind,
)
from rapport.mediation.conversion.currencies import ChangeCurrency
from rapport.mediation.conversion.lookups import ContextLookup, TableLookup
from rapport.mediation.conversion.notations import (
    EPOCH_MILLISECONDS,
    EPOCH_SECONDS,
    ISO,
    ParseNumber,
    ParseTime,
)
from rapport.mediation.conversion.places import FixedOrigin, TableOrigin, ToAbsolute, ToRelative
from rapport.mediation.memory import remembers
from rapport.mediation.types import Types
from rapport.pipeline.mediating import nodes
from rapport.pipeline.mediating.entries import asked, may_equal, one_kind
from rapport.pipeline.mediating.fields_plan import MOST_ROWS, origin_rows
from rapport.pipeline.mediating.framing import fixed_at, framed
from rapport.pipeline.mediating.instants import is_fixed_pattern
from rapport.pipeline.mediating.meanings import SentTables
from rapport.pipeline.mediating.nodes import Arithmetic, Kind, Node, NotColumnsError, bare
from rapport.pipeline.mediating.steps import ConversionStep
from rapport.pipeline.mediating.symbols import Around, Field, Made, Obj, Symbol, opened
from rapport.units.quantities import converter

_MOST_ENTRIES = 200
_SCALARS = ("number", "integer", "text", "boolean")


class Conversions:
    """Conversions on symbols: as operations where there are some, else as a step in Python."""

    def __init__(self, types: Types, tables: SentTables, around: Around) -> None:
        self._types, self._tables, self._around = types, tables, around

    def one(self, conversion: Conversion, value: Symbol, place: str) -> Symbol:
        """What becomes of one value; raises NotColumnsError."""
        how = conversion.how
        if isinstance(how, (Formula, UnitChange)):  # written into the generated text
            self._around.show(place, f"{conversion.name}: {how.affine().expression('x')}")
            return Made(Arithmetic(self._node(value, "number", place), how.affine()))
        found, *_ = self.many(conversion, [value], 1, place)
        return found

    def many(
        self, conversion: Conversion, values: list[Symbol], results: int, place: str
    ) -> list[Symbol]:
        """The same for merging and splitting."""
        how = conversion.how
        if isinstance(how, Identity):
            return values
        if isinstance(how, Chain):
            for number, step in enumerate(how.steps):
                last = number == len(how.steps) - 1
                values = self.many(step, values, results if last else 1, place)
            return values
        if isinstance(how, (Rename, Gather, Scatter)):
            return self._renamed(conversion, how, values, place)
        if isinstance(how, (Call, Stateful)):
            name = how.function
            raise NotColumnsError(place, f"{conversion.name} calls {name}, a function of the site")
        if remembers(conversion):
            raise NotColumnsError(place, f"{conversion.name} depends on earlier events")
        if isinstance(how, ContextLookup):
            raise NotColumnsError(place, f"{conversion.name} asks for what is so at present")
        if isinstance(how, ChangeCurrency) and not how.time:
            raise NotColumnsError(place, f"{conversion.name} goes by the time of the event")
        native = self._native(conversion, values, place)
        if native is not None:
            self._around.show(place, f"{conversion.name} ({_kind_of(how)})")
            return native
        self._around.show(place, f"{conversion.name} ({_kind_of(how)})", _why_python(how))
        return self._stepped(conversion, values, place)

    # --- objects

    def _renamed(
        self,
        conversion: Conversion,
        how: Rename | Gather | Scatter,
        values: list[Symbol],
        place: str,
    ) -> list[Symbol]:
        if isinstance(how, Gather):
            self._around.show(place, f"{', '.join(how.names)} become one object")
            return [Obj(dict(zip(how.names, values, strict=True)))]
        held = opened(values[0], self._types, place)
        if isinstance(how, Rename):
            self._around.show(place, "attributes get other names")
            named = {name for pair in how.names for name in pair}
            parts = {name: each for name, each in held.parts.items() if name not in named}
            parts |= {new: held.parts[old] for old, new in how.names if old in held.parts}
            if self._types.is_complex(conversion.result):
                promised = self._types.attributes(conversion.result)
                parts = {name: each for name, each in parts.items() if name in promised}
            return [Obj(parts, held.path)]
        self._around.show(place, f"one object becomes {', '.join(how.names)}")
        if any(name not in held.parts for name in how.names):
            raise NotColumnsError(place, "an attribute that it needs is not declared")
        return [held.parts[name] for name in how.names]

    # --- values

    def _native(
        self, conversion: Conversion, values: list[Symbol], place: str
    ) -> list[Symbol] | None:
        """The results as operations; None when only Python can do it."""
        how = conversion.how
        if isinstance(how, (Formula, UnitChange)):
            node = self._node(values[0], "number", place)
            return [Made(Arithmetic(node, how.affine(), every=True))]
        if isinstance(how, Enumeration):
            how = how.lookup()
        if isinstance(how, Lookup):
            return self._matched(how, values[0], place)
        if isinstance(how, Join):
            texts = tuple(self._node(each, "text", place) for each in values)
            return [Made(nodes.Concatenated(texts, how.separator))]
        if isinstance(how, Cut) and how.separator:
            text, pieces = self._node(values[0], "text", place), len(conversion.results)
            return [
                Made(nodes.Cut(text, how.separator, pieces, number)) for number in range(pieces)
            ]
        if isinstance(how, ParseNumber) and not self._types.is_complex(conversion.argument):
            text = self._node(values[0], "text", place)
            return [Made(nodes.NumberOf(text, how.decimal))]
        if isinstance(how, ParseTime) and not how.attributes:
            return self._time(how, values, place)
        if isinstance(how, (ToAbsolute, ToRelative)):
            return self._framed(conversion, how, values, place)
        if isinstance(how, TableLookup):
            return self._looked_up(conversion, how, values, place)
        return None

    def _matched(self, how: Lookup, value: Symbol, place: str) -> list[Symbol] | None:
        kind = self._kind(value)
        results: list[Any] = [each for _, each in how.entries]
        has_otherwise = how.otherwise is not msgspec.UNSET
        results += [how.otherwise] if has_otherwise else []
        made = one_kind(results)
        if made is None or kind not in _SCALARS or len(how.entries) > _MOST_ENTRIES:
            return None
        entries = tuple((key, each) for key, each in how.entries if may_equal(key, kind))
        node = self._node(value, "number" if kind == "integer" else kind, place)
        if not has_otherwise:
            node = bare(node, (str(key) for key, _ in entries))
        otherwise = how.otherwise if has_otherwise else None
        return [Made(nodes.Matched(node, entries, made, otherwise))]

    def _time(self, how: ParseTime, values: list[Symbol], place: str) -> list[Symbol] | None:
        if how.format in (EPOCH_SECONDS, EPOCH_MILLISECONDS):
            unit = 1_000.0 if how.format == EPOCH_SECONDS else 1.0
            return [Made(nodes.Epoch(self._node(values[0], "number", place), unit))]
        pattern = "" if how.format == ISO else how.format
        if pattern and not is_fixed_pattern(pattern):
            return None
        texts = tuple(self._node(each, "text", place) for each in values)
        whole: Node = (
            bare(texts[0], ()) if len(texts) == 1 else nodes.Concatenated(texts, how.separator)
        )
        return [Made(nodes.Instant(whole, pattern, how.zone, how.fold))]

    def _framed(
        self,
        conversion: Conversion,
        how: ToAbsolute | ToRelative,
        values: list[Symbol],
        place: str,
    ) -> list[Symbol] | None:
        taken, held = self._taken(conversion, how, values, place)
        origin = how.origin
        length, turn = converter(origin.unit, "m"), converter(origin.heading_unit, "deg")
        if isinstance(origin, FixedOrigin):
            numbers = (length.apply(origin.x), length.apply(origin.y), turn.apply(origin.heading))
            at = fixed_at(numbers)
        elif isinstance(origin, TableOrigin):
            columns = [(origin.x, length), (origin.y, length)]
            columns += [(origin.heading, turn)] if origin.heading else []
            keys = tuple(self._tables.keys(origin.table))
            if len(keys) > MOST_ROWS:
                return None
            rows = origin_rows(self._tables, origin.table, keys, tuple(columns), north=True)
            device = bare(self._node(taken[2], "text", place), (str(row[0]) for row in rows))
            at = tuple(
                nodes.InTable(device, f"{origin.table} as origin", rows, ("number",) * 5, number)
                for number in range(5)
            )
        else:
            return None
        x, y = (self._node(each, "number", place) for each in taken[:2])
        return self._given(conversion, how, held, framed(how, x, y, at))

    def _looked_up(
        self, conversion: Conversion, how: TableLookup, values: list[Symbol], place: str
    ) -> list[Symbol] | None:
        """All rows are asked for here, by the function that Python would ask with."""
        taken, held = self._taken(conversion, how, values, place)
        keys = self._tables.keys(how.table)
        kinds = self._result_kinds(conversion, how)
        if kinds is None or len(keys) > MOST_ROWS or how.otherwise is not msgspec.UNSET:
            return None
        step = self._step(conversion, how)
        rows = tuple((key, *found) for key in keys if (found := asked(step, kinds, key)))
        key = bare(self._node(taken[0], "text", place), (row[0] for row in rows))
        made = [nodes.InTable(key, how.table, rows, kinds, n) for n in range(len(kinds))]
        return self._given(conversion, how, held, tuple(made))

    # --- in Python

    def _stepped(self, conversion: Conversion, values: list[Symbol], place: str) -> list[Symbol]:
        how = conversion.how
        if not isinstance(how, ValueKind):
            raise NotColumnsError(place, f"{conversion.name} is no conversion of columns")
        taken, held = self._taken(conversion, how, values, place)
        kinds = self._result_kinds(conversion, how)
        if kinds is None:
            raise NotColumnsError(place, f"{conversion.name} gives no scalars")
        ports = how.takes(len(conversion.arguments))
        given = tuple(
            self._node(each, "text" if port.kind == "scalar" else port.kind, place)
            for each, port in zip(taken, ports, strict=True)
        )
        step = self._step(conversion, how)
        made = tuple(nodes.Stepped(given, step, kinds, number) for number in range(len(kinds)))
        return self._given(conversion, how, held, made)

    def _step(self, conversion: Conversion, how: Any) -> ConversionStep:
        takes: tuple[str, ...] = ()
        gives: tuple[str, ...] = ()
        if len(conversion.arguments) == 1 and self._types.is_complex(conversion.argument):
            takes = tuple(port.name for port in how.takes(1))
        if len(conversion.results) == 1 and self._types.is_complex(conversion.result):
            gives = tuple(port.name for port in how.gives(1))
        return ConversionStep(conversion, self._types, self._tables, takes, gives)

    def _taken(
        self, conversion: Conversion, how: Any, values: list[Symbol], place: str
    ) -> tuple[list[Symbol], Obj | None]:
        """The values that go in, and the object that they are taken out of."""
        if not (len(conversion.arguments) == 1 and self._types.is_complex(conversion.argument)):
            return values, None
        held = opened(values[0], self._types, place)
        names = [port.name for port in how.takes(1)]
        if any(name not in held.parts for name in names):
            raise NotColumnsError(place, "an attribute that it needs is not declared")
        return [held.parts[name] for name in names], held

    def _given(
        self, conversion: Conversion, how: Any, held: Obj | None, made: tuple[Node, ...]
    ) -> list[Symbol]:
        """The results, one by one or as an object, which keeps what its type has."""
        if not (len(conversion.results) == 1 and self._types.is_complex(conversion.result)):
            return [Made(node) for node in made]
        kept: dict[str, Any] = dict(held.parts) if held is not None else {}
        if conversion.argument != conversion.result:
            there = self._types.attributes(conversion.result)
            kept = {name: each for name, each in kept.items() if name in there}
        names = [port.name for port in how.gives(1)]
        kept |= {name: Made(node) for name, node in zip(names, made, strict=True)}
        return [Obj(kept, held.path if held is not None else ())]

    def _result_kinds(self, conversion: Conversion, how: Any) -> tuple[Kind, ...] | None:
        if len(conversion.results) == 1 and self._types.is_complex(conversion.result):
            there = self._types.attributes(conversion.result)
            types = [there[port.name].type for port in how.gives(1)]
        else:
            types = list(conversion.results)
        kinds = tuple(self._types.kind(each) for each in types)
        return kinds if all(kind in _SCALARS for kind in kinds) else None  # type: ignore[return-value]

    def _kind(self, value: Symbol) -> str:
        if isinstance(value, Made):
            return value.node.kind
        return self._types.kind(value.type) if isinstance(value, Field) else "object"

    def _node(self, value: Symbol, wanted: str, place: str) -> Node:
        """A value as an operation of a kind."""
        if isinstance(value, Field) and self._types.kind(value.type) in (*_SCALARS, "json"):
            return self._around.field(value, wanted)
        if isinstance(value, Made) and value.node.kind == wanted:
            return value.node
        raise NotColumnsError(place, f"it is no {wanted}")


def _kind_of(how: Any) -> str:
    return str(how.__struct_config__.tag)


def _why_python(how: Any) -> str:
    if isinstance(how, ParseTime):
        return "only Python reads this pattern"
    if isinstance(how, (Lookup, Enumeration, TableLookup)):
        return "too many entries, results of several kinds, or an `otherwise`"
    return "only Python calculates this to the last bit"
