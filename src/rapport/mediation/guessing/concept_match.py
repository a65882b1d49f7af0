"""Matches columns of numbers to attributes of a concept, by the words of their names and the
dimension of their units. Pure. [ME-11, ME-13]

If the site has no matching concept, a new one is proposed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from rapport.mediation.concepts import KEY, TIME, ConceptAttribute, Concepts
from rapport.mediation.guessing.columns import ColumnPathName
from rapport.mediation.guessing.guess import Guess, ValueGuess
from rapport.mediation.guessing.vocabulary import (
    DISTINCT,
    QUANTITIES,
    meanings_of,
    short_name,
    slug,
    words_of,
)
from rapport.units.quantities import unit_named

_THINGS = {
    "station": ("station", "estacao", "estacion", "wetterstation", "stationcode", "stationid"),
    "device": ("device", "dev", "sensor", "node", "geraet", "dispositivo", "appareil"),
    "vehicle": ("vehicle", "bus", "car", "veiculo", "vehiculo", "fahrzeug", "vehicule"),
    "meter": ("meter", "medidor", "contador", "zaehler", "compteur"),
    "room": ("room", "sala", "raum", "salle"),
}
"""Concepts by words in the name of a key."""
_IDENTIFIERS = ("id", "code", "key", "nr", "no", "number", "nummer", "codigo", "serial")
"""What stands behind the name of a thing in the name of a key: `freezer_id`."""
_IDENTITY = "id"
"""The identity of every concept; attributes have other names."""


def concept_name(
    guess: Guess, source: str, taken: Collection[str], is_name: Callable[[str], bool]
) -> str:
    """The concept that the key's name suggests, else the source's name; never a taken one."""
    of_key = words_of(guess.key.field[-1]) if guess.key else ()
    things = [thing for thing, words in _THINGS.items() if set(of_key).intersection(words)]
    if len(of_key) > 1 and of_key[-1] in _IDENTIFIERS:
        things.append("-".join(of_key[:-1]))
    # NGSI entities have a type; a concept of that name would be confused with it.
    types = {
        str(value)
        for column in guess.columns
        if column.path == ("type",)
        for value in column.values
    }
    wanted = [*things, _worded(slug(source), "thing"), "thing"]
    return _free(wanted, {*taken, *types}, is_name)


def attribute_names(
    values: Sequence[ValueGuess], taken: Collection[str], is_name: Callable[[str], bool]
) -> dict[ColumnPathName, str]:
    """A unique name for each column that is not taken."""
    found: dict[ColumnPathName, str] = {}
    for value in values:
        path, unit = value.column.path, value.unit.unit
        name = re.sub(rf"[_\s.-]+{re.escape(unit)}$", "", path[-1]) if unit else path[-1]
        own = _worded(slug(name), "value")
        wanted = [*filter(None, [short_name(name)]), own, f"{own}-value"]
        found[path] = _free(wanted, {_IDENTITY, *taken, *found.values()}, is_name)
    return found


def _worded(name: str, otherwise: str) -> str:
    """Begins with a letter and has no empty part."""
    return name if name[:1].isalpha() else f"{otherwise}-{name}".strip("-")


def _free(wanted: Sequence[str], taken: Collection[str], is_name: Callable[[str], bool]) -> str:
    for name in wanted:
        if name not in taken and is_name(name):
            return name
    number = 2
    while f"{wanted[-1]}-{number}" in taken:
        number += 1
    return f"{wanted[-1]}-{number}"


IsName = Callable[[str], bool]
"""Whether a text can name a concept or an attribute."""
_MIXED = "some numbers come as text and some do not: only the fields form reads both"
_SAME, _SAID, _LIKELY, _ANOTHER = range(4)
"""Quality of a name match, best first; another quantity is only mentioned."""


class AttributeMatch(msgspec.Struct, frozen=True):
    """The attribute for a column. Without `taken` it is proposed as a comment; `because` gives
    the reason.
    """

    attribute: str
    unit: str
    """The canonical unit; empty if undeclared."""
    taken: bool
    sure: bool
    because: str
    fits: bool = True
    """The attribute exists in the concept and is not matched by another column."""


class ConceptMatch(msgspec.Struct, frozen=True):
    """The concept of the rows. Without `known` it is a proposed new one."""

    concept: str
    known: bool
    matches: dict[ColumnPathName, AttributeMatch]

    def columns(self, values: Iterable[ValueGuess]) -> Iterator[tuple[ValueGuess, AttributeMatch]]:
        return ((value, self.matches[value.column.path]) for value in values)

    @property
    def given(self) -> list[str]:
        """Attributes that the rows deliver as proposed."""
        return [match.attribute for match in self.matches.values() if match.taken]

    @property
    def open(self) -> list[str]:
        """Attributes that they could deliver once doubts are resolved."""
        matches = self.matches.values()
        return [match.attribute for match in matches if match.fits and not match.taken]


class _NameMatch(msgspec.Struct, frozen=True):
    """A column and an attribute with related names."""

    rank: int
    in_common: int
    value: ValueGuess
    match: AttributeMatch


def match_concept(
    guess: Guess, concepts: Concepts, *, name: str, is_name: IsName = bool
) -> ConceptMatch:
    """The concept with most matching attributes, the first of equals; else a new one for all
    columns, named after the source `name` or the key.
    """
    found = [_in_concept(guess, concept, concepts[concept]) for concept in concepts]
    best = max(found, key=_how_many, default=None)
    if best is not None and _how_many(best) > (0, 0):
        return _with_the_others(best, guess, concepts[best.concept], is_name)
    concept = concept_name(guess, name, concepts, is_name)
    names = attribute_names(guess.values, (KEY, TIME), is_name)
    matches = {
        path: _proposed(value, attribute)
        for (path, attribute), value in zip(names.items(), guess.values, strict=True)
    }
    return ConceptMatch(concept, False, matches)


def _how_many(concept_match: ConceptMatch) -> tuple[int, int]:
    fitting = [match for match in concept_match.matches.values() if match.fits]
    return len(fitting), sum(match.taken for match in fitting)


def _in_concept(
    guess: Guess, concept: str, attributes: Mapping[str, ConceptAttribute]
) -> ConceptMatch:
    """Best pairs first; each column and attribute once."""
    fits = [
        fit
        for value in guess.values
        for attribute, declared in attributes.items()
        if declared.type == "number" and (fit := _fit(value, concept, attribute, declared))
    ]
    found: dict[ColumnPathName, AttributeMatch] = {}
    beaten: dict[ColumnPathName, AttributeMatch] = {}
    taken: dict[str, str] = {}
    for fit in sorted(fits, key=lambda each: (not each.match.fits, each.rank, -each.in_common)):
        path, match = fit.value.column.path, fit.match
        if path in found:
            continue
        if match.fits and match.attribute in taken:
            because = f"{taken[match.attribute]!r} becomes it"
            no_place = AttributeMatch(
                match.attribute, match.unit, False, False, because, fits=False
            )
            beaten.setdefault(path, no_place)
            continue
        found[path] = match
        if match.fits:
            taken[match.attribute] = fit.value.column.name
    return ConceptMatch(concept, True, {**beaten, **found})


def _with_the_others(
    concept_match: ConceptMatch,
    guess: Guess,
    attributes: Mapping[str, ConceptAttribute],
    is_name: IsName,
) -> ConceptMatch:
    """Unmatched columns get a possible name for the concept."""
    others = [value for value in guess.values if value.column.path not in concept_match.matches]
    names = attribute_names(others, (KEY, TIME, *attributes), is_name)
    matches = dict(concept_match.matches)
    for value in others:
        path = value.column.path
        because = (
            f"{concept_match.concept} has no attribute for it; one could be added to "
            f"[concepts.{concept_match.concept}.attributes]"
        )
        matches[path] = AttributeMatch(names[path], "", False, False, because, fits=False)
    ordered = {each.column.path: matches[each.column.path] for each in guess.values}
    return ConceptMatch(concept_match.concept, True, ordered)


def _proposed(value: ValueGuess, attribute: str) -> AttributeMatch:
    if not value.unit.unit:
        return AttributeMatch(attribute, "", False, False, value.unit.because)
    unit = unit_named(value.unit.unit).symbol
    if value.column.is_mixed:
        return AttributeMatch(attribute, unit, False, False, _MIXED)
    return AttributeMatch(attribute, unit, True, True, "a new attribute with its unit")


def _fit(
    value: ValueGuess, concept: str, attribute: str, declared: ConceptAttribute
) -> _NameMatch | None:
    name = value.column.path[-1]
    found = _names(name, attribute)
    if found is None:
        return None
    rank, because = found
    in_common = len(meanings_of(name) & meanings_of(attribute))
    match = _match(value, f"{concept}.{attribute}", attribute, declared.unit)
    if rank == _ANOTHER and match.fits:
        match = AttributeMatch(attribute, declared.unit, False, False, because, fits=False)
    elif match.taken:
        match = AttributeMatch(attribute, declared.unit, True, rank != _LIKELY, because)
    return _NameMatch(rank, in_common, value, match)


def _match(value: ValueGuess, place: str, attribute: str, root_unit: str) -> AttributeMatch:
    """What the units allow, whatever the names."""
    unit = value.unit.unit
    if not unit:
        return AttributeMatch(attribute, root_unit, False, False, value.unit.because)
    if not root_unit:
        symbol = unit_named(unit).symbol
        because = f'root says no unit for {place}: add {attribute} = "{symbol}" to its units'
        return AttributeMatch(attribute, "", False, False, because, fits=False)
    here, there = unit_named(unit), unit_named(root_unit)
    if here.dimension != there.dimension:
        because = f"{unit} is a {here.dimension}, {place} is a {there.dimension}"
        return AttributeMatch(attribute, root_unit, False, False, because, fits=False)
    if value.column.is_mixed:
        return AttributeMatch(attribute, root_unit, False, False, _MIXED)
    return AttributeMatch(attribute, root_unit, True, True, "")


def _names(column: str, attribute: str) -> tuple[int, str] | None:
    """The quality of a name match and its reason; None if unrelated."""
    if words_of(column) == words_of(attribute):
        return _SAME, "the names are the same"
    here, there = meanings_of(column), meanings_of(attribute)
    quantities = there.intersection(QUANTITIES)
    if not there or not (quantities or there) <= here:
        return None
    other = sorted((here ^ there).intersection(DISTINCT))
    if other:
        return _ANOTHER, f"only one of the names says {', '.join(other)}"
    if missing := sorted(there - here):
        return _LIKELY, f"the name does not say {', '.join(missing)}"
    if not quantities:
        return _LIKELY, f"the name says {', '.join(sorted(there))} among other things"
    return _SAID, f"the name says {', '.join(sorted(there))}"
