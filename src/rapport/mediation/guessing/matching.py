"""Which attribute of a concept each column of numbers becomes: by the words of its name, and only
in the same dimension. Pure. [ME-11, ME-13]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from rapport.mediation.concepts import KEY, TIME, ConceptAttribute, Concepts
from rapport.mediation.guessing.columns import Path
from rapport.mediation.guessing.guess import Guess, ValueGuess
from rapport.mediation.guessing.naming import attribute_names, concept_name
from rapport.mediation.guessing.words import DISTINCT, QUANTITIES, meanings_of, words_of
from rapport.units.quantities import unit_named

IsName = Callable[[str], bool]
"""Whether a text can name a concept or an attribute."""
_MIXED = "some numbers come as text and some do not: only the fields form reads both"
_SAME, _SAID, _LIKELY, _ANOTHER = range(4)
"""How well a name fits, the best first; what is another quantity is only spoken of."""


class Match(msgspec.Struct, frozen=True):
    """What becomes of a column. Not `taken`: it is proposed as a comment; `because` says why."""

    attribute: str
    unit: str
    """In root; empty when nobody said."""
    taken: bool
    sure: bool
    because: str
    fits: bool = True
    """The attribute is the concept's own, and nobody else's."""


class Becoming(msgspec.Struct, frozen=True):
    """The concept that rows speak of. Not `known`: the site has none that fits, one is proposed."""

    concept: str
    known: bool
    matches: dict[Path, Match]

    @property
    def given(self) -> list[str]:
        """Attributes that the rows give as it is proposed."""
        return [match.attribute for match in self.matches.values() if match.taken]

    @property
    def open(self) -> list[str]:
        """Attributes that they would give once something is settled."""
        matches = self.matches.values()
        return [match.attribute for match in matches if match.fits and not match.taken]


class _Fit(msgspec.Struct, frozen=True):
    """One column and one attribute whose names have to do with each other."""

    rank: int
    in_common: int
    value: ValueGuess
    match: Match


def become(guess: Guess, concepts: Concepts, *, name: str, is_name: IsName = bool) -> Becoming:
    """The concept with most fitting attributes, the first of equals; else a new one for all
    columns, named after the source `name` or what the key names.
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
    return Becoming(concept, False, matches)


def _how_many(becoming: Becoming) -> tuple[int, int]:
    fitting = [match for match in becoming.matches.values() if match.fits]
    return len(fitting), sum(match.taken for match in fitting)


def _in_concept(guess: Guess, concept: str, attributes: Mapping[str, ConceptAttribute]) -> Becoming:
    """The best pairs first; no column and no attribute twice."""
    fits = [
        fit
        for value in guess.values
        for attribute, declared in attributes.items()
        if declared.type == "number" and (fit := _fit(value, concept, attribute, declared))
    ]
    found: dict[Path, Match] = {}
    beaten: dict[Path, Match] = {}
    taken: dict[str, str] = {}
    for fit in sorted(fits, key=lambda each: (not each.match.fits, each.rank, -each.in_common)):
        path, match = fit.value.column.path, fit.match
        if path in found:
            continue
        if match.fits and match.attribute in taken:
            because = f"{taken[match.attribute]!r} becomes it"
            no_place = Match(match.attribute, match.unit, False, False, because, fits=False)
            beaten.setdefault(path, no_place)
            continue
        found[path] = match
        if match.fits:
            taken[match.attribute] = fit.value.column.name
    return Becoming(concept, True, {**beaten, **found})


def _with_the_others(
    becoming: Becoming,
    guess: Guess,
    attributes: Mapping[str, ConceptAttribute],
    is_name: IsName,
) -> Becoming:
    """Columns that nothing fits get a name that the concept could have for them."""
    others = [value for value in guess.values if value.column.path not in becoming.matches]
    names = attribute_names(others, (KEY, TIME, *attributes), is_name)
    matches = dict(becoming.matches)
    for value in others:
        path = value.column.path
        because = (
            f"{becoming.concept} has no attribute for it; one could be added to "
            f"[concepts.{becoming.concept}.attributes]"
        )
        matches[path] = Match(names[path], "", False, False, because, fits=False)
    ordered = {each.column.path: matches[each.column.path] for each in guess.values}
    return Becoming(becoming.concept, True, ordered)


def _proposed(value: ValueGuess, attribute: str) -> Match:
    if not value.unit.unit:
        return Match(attribute, "", False, False, value.unit.because)
    unit = unit_named(value.unit.unit).symbol
    if value.column.is_mixed:
        return Match(attribute, unit, False, False, _MIXED)
    return Match(attribute, unit, True, True, "proposed below with its unit")


def _fit(
    value: ValueGuess, concept: str, attribute: str, declared: ConceptAttribute
) -> _Fit | None:
    name = value.column.path[-1]
    found = _names(name, attribute)
    if found is None:
        return None
    rank, because = found
    in_common = len(meanings_of(name) & meanings_of(attribute))
    match = _match(value, f"{concept}.{attribute}", attribute, declared.unit)
    if rank == _ANOTHER and match.fits:
        match = Match(attribute, declared.unit, False, False, because, fits=False)
    elif match.taken:
        match = Match(attribute, declared.unit, True, rank != _LIKELY, because)
    return _Fit(rank, in_common, value, match)


def _match(value: ValueGuess, place: str, attribute: str, root_unit: str) -> Match:
    """What units allow, whatever the names say."""
    unit = value.unit.unit
    if not unit:
        return Match(attribute, root_unit, False, False, value.unit.because)
    if not root_unit:
        symbol = unit_named(unit).symbol
        because = f'root says no unit for {place}: add {attribute} = "{symbol}" to its units'
        return Match(attribute, "", False, False, because, fits=False)
    here, there = unit_named(unit), unit_named(root_unit)
    if here.dimension != there.dimension:
        because = f"{unit} is a {here.dimension}, {place} is a {there.dimension}"
        return Match(attribute, root_unit, False, False, because, fits=False)
    if value.column.is_mixed:
        return Match(attribute, root_unit, False, False, _MIXED)
    return Match(attribute, root_unit, True, True, "")


def _names(column: str, attribute: str) -> tuple[int, str] | None:
    """How well a column's name fits, and why; None when they have nothing to do with each other."""
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


def shown_matches(
    becoming: Becoming, values: Collection[ValueGuess]
) -> Iterator[tuple[ValueGuess, Match]]:
    """Every column of numbers with what becomes of it."""
    for value in values:
        yield value, becoming.matches[value.column.path]
