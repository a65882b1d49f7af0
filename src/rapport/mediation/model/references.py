"""What conversions name outside of their interpretation: tables, columns, concepts, and types that
feed them. [ME-4, ME-7]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rapport.core.errors import Problem
from rapport.mediation.model.conversions import Chain, Conversion, functions_of
from rapport.mediation.model.feeding import fed_by
from rapport.mediation.model.finding import ContextLookup, TableLookup
from rapport.mediation.model.interpretations import Interpretations
from rapport.mediation.model.money import ChangeCurrency, RateTable
from rapport.mediation.model.places import TableOrigin, ToAbsolute, ToRelative
from rapport.mediation.model.port_checks import bad, suggestion


def check_references(
    conversions: Iterable[Conversion],
    tables: Mapping[str, tuple[str, ...]],
    concepts: Mapping[str, Iterable[str]],
) -> list[Problem]:
    """Tables, columns, concepts and attributes that the site does not have, with the nearest.

    `tables` as `Tables.columns()` gives them; `concepts` with the names of their attributes.
    """
    return list(
        dict.fromkeys(
            problem
            for conversion in conversions
            for step in _steps(conversion)
            for problem in _check(step, tables, concepts)
        )
    )


def feeds_of(interpretations: Interpretations, name: str) -> dict[str, tuple[Conversion, ...]]:
    """The types of events that conversions of an interpretation, inherited ones too, learn from.

    Each is fed by `Memory.feed(conversion, event, functions)`.
    """
    found: dict[str, dict[str, Conversion]] = {}
    for conversion in interpretations.checked(name).scope.conversions.values():
        for type_name, fed in fed_by(conversion):
            found.setdefault(type_name, {})[fed.name] = fed
    return {type_name: tuple(fed.values()) for type_name, fed in found.items()}


def functions_needed(interpretations: Interpretations, name: str) -> tuple[str, ...]:
    """The names of the site's functions that conversions of an interpretation call, and those that
    lead to and from types of root that were replaced since it was written.
    """
    conversions = [*interpretations.checked(name).scope.conversions.values()]
    for replacement in interpretations.replacements[interpretations.root_version(name) :]:
        conversions += [replacement.forth, replacement.back]
    return tuple(dict.fromkeys(each for one in conversions for each in functions_of(one)))


def _steps(conversion: Conversion) -> Iterator[Conversion]:
    if isinstance(conversion.how, Chain):
        for step in conversion.how.steps:
            yield from _steps(step)
    else:
        yield conversion


def _check(
    conversion: Conversion,
    tables: Mapping[str, tuple[str, ...]],
    concepts: Mapping[str, Iterable[str]],
) -> Iterator[Problem]:
    how = conversion.how
    if isinstance(how, ContextLookup):
        yield from _concept(conversion, how, concepts)
        return
    table, columns = _table_of(conversion)
    if not table:
        return
    if table not in tables:
        hint = suggestion(table, tables) if tables else "declare it in the site file"
        yield bad(conversion, f"there is no table {table!r}", hint, "lookup.unknown_table")
        return
    for column in columns:
        if column not in tables[table]:
            hint = suggestion(column, tables[table])
            message = f"table {table!r} has no column {column!r}"
            yield bad(conversion, message, hint, "lookup.unknown_column")


def _table_of(conversion: Conversion) -> tuple[str, tuple[str, ...]]:
    how = conversion.how
    if isinstance(how, TableLookup):
        return how.table, how.columns
    if isinstance(how, (ToAbsolute, ToRelative)) and isinstance(how.origin, TableOrigin):
        origin = how.origin
        heading = (origin.heading,) if origin.heading else ()
        return origin.table, (origin.x, origin.y, *heading)
    if isinstance(how, ChangeCurrency) and isinstance(how.rates, RateTable):
        rates = how.rates
        return rates.table, (rates.currency, rates.rate, rates.valid_from)
    return "", ()


def _concept(
    conversion: Conversion, how: ContextLookup, concepts: Mapping[str, Iterable[str]]
) -> Iterator[Problem]:
    if how.concept not in concepts:
        hint = suggestion(how.concept, concepts) if concepts else ""
        message = f"there is no concept {how.concept!r}"
        yield bad(conversion, message, hint, "lookup.unknown_concept")
    elif how.attribute not in concepts[how.concept]:
        hint = suggestion(how.attribute, tuple(concepts[how.concept]))
        message = f"the concept {how.concept!r} has no attribute {how.attribute!r}"
        yield bad(conversion, message, hint, "lookup.unknown_attribute")
