"""An interpretation compiled for one source: raw event in, reading or rejection out. [ME-8]"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

import msgspec

from rapport.core.errors import RapportError
from rapport.core.event import Event, StoredEvent, cause_text
from rapport.mediation import fields
from rapport.mediation.binding import SourceBinding
from rapport.mediation.compiler import generate
from rapport.mediation.interpretation import ConversionRule, Interpretation
from rapport.mediation.lookups import Lookups, NoTables, numbers_finder, text_finder
from rapport.mediation.plausibility import plausible_unit
from rapport.mediation.rejection import Rejected, Rejection
from rapport.mediation.resolve import Resolved, resolve
from rapport.units.coordinates import polar_to_cartesian, relative_to_absolute

_ENCODE = msgspec.json.Encoder().encode


class Conversions(Protocol):
    """Who carries out plug-in conversions."""

    def call(self, rule: ConversionRule, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results, one per name in `rule.give`; blocks up to the deadline; raises Rejected."""


class Transformer:
    """One generated function for one (interpretation, source).

    `apply` and `apply_many` never raise: what cannot be given a meaning becomes a Rejection. They
    do not block unless `may_block` says that plug-in conversions are called; then keep them off the
    event loop.
    """

    def __init__(self, resolved: Resolved, text: str, transform: Callable[[Event, int], Event]):
        self.binding = resolved.binding
        self.interpretation = resolved.interpretation
        self.stamp = resolved.interpretation.stamp()
        self.may_block = bool(resolved.interpretation.conversions)
        self.knows_only_now = False
        self.into = resolved.binding.into
        self.local_zone = local_zone(resolved)
        self._text, self._transform = text, transform

    @staticmethod
    def build(
        interpretation: Interpretation | None,
        binding: SourceBinding,
        *,
        lookups: Lookups | None = None,
        conversions: Conversions | None = None,
    ) -> Transformer:
        """Checks, generates, compiles; None: the source speaks root. InterpretationError."""
        resolved = resolve(interpretation, binding)
        text = generate(resolved)
        names = _names(resolved, lookups or NoTables(), conversions)
        code = compile(text, f"<transformer of {resolved.interpretation.stamp()!r}>", "exec")
        exec(code, names)  # our own text only, see compiler.py
        return Transformer(resolved, text, names["transform"])

    def source_text(self) -> str:
        """The generated Python, as `rapport mediate show` prints it."""
        return self._text

    def apply(self, event: Event, position: int = 0) -> Event | Rejection:
        """The reading of one raw event; `position` is its place in the raw channel."""
        try:
            return self._transform(event, position)
        except Rejected as fault:
            code, message, hint = fault.code, fault.message, fault.hint
        except RapportError as error:
            code, message, hint = error.code, error.message, error.hint
        except Exception as error:  # one bad event must never stop the others
            code, message, hint = "mediation.fault", f"{type(error).__name__}: {error}", ""
        return Rejection(code, message[:500], hint[:500], event, position, self.stamp)

    def apply_many(self, events: Iterable[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        """Readings and rejections of a batch, each in order."""
        readings: list[Event] = []
        rejections: list[Rejection] = []
        for stored in events:
            result = self.apply(stored.event, stored.position)
            if isinstance(result, Event):
                readings.append(result)
            else:
                rejections.append(result)
        return readings, rejections


def local_zone(resolved: Resolved) -> str:
    """The zone of times that are written as local ones; empty when they are not."""
    rule = resolved.interpretation.time
    if rule is None or rule.format in ("epoch_s", "epoch_ms") or "%z" in rule.format:
        return ""
    return rule.zone or resolved.binding.zone


_SHARED: Mapping[str, Any] = {
    "__builtins__": {},
    "dict": dict,
    "float": float,
    "int": int,
    "str": str,
    "Event": Event,
    "cause_text": cause_text,
    "MISSING": fields.MISSING,
    "decode_object": fields.decode_object,
    "encode": _ENCODE,
    "isfinite": math.isfinite,
    "kept_headers": fields.kept_headers,
    "number": fields.number,
    "number_or_text": fields.number_or_text,
    "text": fields.text,
    "truth": fields.truth,
    "truth_or_text": fields.truth_or_text,
    "name": fields.name,
    "subject_of": fields.subject,
    "iso_time": fields.iso_time,
    "epoch_time": fields.epoch_time,
    "pattern_time": fields.pattern_time,
    "root_time": fields.root_time,
    "not_finite": fields.not_finite,
    "polar_to_cartesian": polar_to_cartesian,
    "relative_to_absolute": relative_to_absolute,
}


def _names(resolved: Resolved, lookups: Lookups, conversions: Conversions | None) -> dict[str, Any]:
    """Everything the generated function may refer to, and nothing else."""
    names = dict(_SHARED)
    names |= {"undeclared": _undeclared, "unknown_identity": _unknown_identity}
    names["wrong_type"] = _wrong_type
    interpretation = resolved.interpretation
    if interpretation.identity.lookup is not None:
        lookup = interpretation.identity.lookup
        names["find_identity"] = text_finder(lookups, lookup.table, lookup.column)
    if interpretation.origin is not None and resolved.origin_units is not None:
        origin, (length, angle) = interpretation.origin, resolved.origin_units
        columns = [(origin.x, length), (origin.y, length)]
        columns += [(origin.heading, angle)] if origin.heading else []
        names["find_origin"] = numbers_finder(lookups, origin.table, tuple(columns))
    for number, rule in enumerate(interpretation.conversions):
        names[f"convert_{number}"] = _caller(rule, conversions)
    return names


def _caller(
    rule: ConversionRule, conversions: Conversions | None
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    def convert(values: tuple[Any, ...]) -> tuple[Any, ...]:
        if conversions is None:
            raise Rejected(
                "conversion.unavailable", f"nobody carries out the conversion {rule.call!r} here"
            )
        return conversions.call(rule, values)

    return convert


def _undeclared(value: Any, field: str) -> NoReturn:
    raise Rejected(
        "unit.undeclared",
        f"the unit of {field} is not declared",
        plausible_unit(field, value) or 'declare unit = "..." in the interpretation',
    )


def _unknown_identity(value: Any, field: str, table: str) -> NoReturn:
    where = f"table {table!r} does not know" if table else "the device does not know whom it saw:"
    raise Rejected(
        "identity.unknown",
        f"{where} {field} {str(value)[:60]!r}",
        f"add the row to {table!r}, or declare `otherwise`" if table else "declare `otherwise`",
    )


def _wrong_type(found: str, expected: str) -> NoReturn:
    raise Rejected(
        "type.unexpected", f"the event's type is {found[:60]!r}, declared is {expected!r}"
    )
