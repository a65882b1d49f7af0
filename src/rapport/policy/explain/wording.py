"""Terms, clauses, values and times in words. [PO-11]"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rapport.core.schema import PART_UNITS
from rapport.core.times import format_time
from rapport.policy import measures, relations
from rapport.policy.explain.answer import ShownReading
from rapport.policy.explain.evidence import Reading
from rapport.policy.language.printer import print_value
from rapport.policy.ontology import Ontology
from rapport.policy.operators.plan_shape import NotFollowed, NotPreceded, Occurs, OrderedTerms, Part
from rapport.policy.plan import (
    Child,
    Clause,
    Constant,
    LastingTerm,
    LookedUp,
    Measure,
    Operand,
    Plan,
    Sequence,
    SideValue,
    SilentTerm,
    StateAll,
    StateAtom,
    StateExpression,
    StateTerm,
    TermStep,
    signed_terms,
)

_OPEN, _CLOSE = "\ue000", "\ue001"
"""Delimiters of times in sentences: private-use characters, which no name contains."""
_TIMES = re.compile(f"{_OPEN}(-?[0-9]+){_CLOSE}")


class Wording:
    """Texts in the terms of one ontology."""

    def __init__(self, ontology: Ontology) -> None:
        self._ontology = ontology

    def term(self, term: TermStep, *, negated: bool = False) -> str:
        """`A is not within 5 m of B`, `temperature of S > 30 degC`."""
        match term:
            case LastingTerm():
                return f"{self.state(term.state)} for {duration(term.duration_ms)}"
            case SilentTerm():
                attributes = [stream.partition(".")[2] for stream in term.streams]
                named = " or ".join(attributes)
                return f"no {named} of {term.first.alias} for {duration(term.duration_ms)}"
            case _ if term.compared is not None:
                return f"{'NOT ' * negated}{self.comparison(term)}"
            case _:
                return self._relationship(term, negated)

    def state(self, state: StateExpression) -> str:
        if isinstance(state, StateAtom):
            return self.term(state.term, negated=state.negated)
        joined = " AND " if isinstance(state, StateAll) else " OR "
        return "(" + joined.join(self.state(part) for part in state.parts) + ")"

    def comparison(self, term: StateTerm) -> str:
        """The comparison with the unit of the measured value."""
        assert term.compared is not None
        unit = self.unit(term)
        left, right = (
            self._operand(each, term, unit) for each in (term.compared.left, term.compared.right)
        )
        return f"{left} {term.compared.operator} {right}"

    def of_property(self, concept: str, attribute: str, value: Any) -> str:
        """A value of an attribute with its unit; a boolean as a word even where it is stored as a
        number.
        """
        if value is None:
            return value_text(value)
        if self._ontology.concepts[concept].get(attribute) == "boolean":
            return value_text(bool(value))
        unit = self._ontology.units.get(concept, {}).get(attribute, "")
        return f"{value_text(value)} {unit}".rstrip()

    def unit(self, term: StateTerm) -> str:
        """The unit of a comparison; empty when there is none."""
        assert term.compared is not None
        sides = (term.first, term.second)
        for operand in (term.compared.left, term.compared.right):
            match operand:
                case SideValue(side, attribute):
                    unit = self._ontology.units.get(sides[side].concept, {}).get(attribute, "")
                case LookedUp(function):
                    unit = self._ontology.functions[function].unit
                case Measure(function):
                    unit = measures.get(function).unit or self._declared_unit(function)
                case Constant():
                    unit = ""
            if unit:
                return unit
        return ""

    def value(self, stream: str, value: tuple[Any, ...]) -> str:
        """`4, 29 m`, `29.5 degC`, `'open'`."""
        concept, _, attribute = stream.partition(".")
        kind = self._ontology.concepts.get(concept, {}).get(attribute, "text")
        unit = self._ontology.units.get(concept, {}).get(attribute, "")
        unit = unit or PART_UNITS.get(kind, "")
        shown = ", ".join(value_text(part) for part in value)
        if kind == "geo_point":  # the fourth decimal is eleven metres
            shown = ", ".join(f"{float(part):.6f}".rstrip("0").rstrip(".") for part in value)
        return f"{shown} {unit}" if unit else shown

    def reading(self, reading: Reading) -> ShownReading:
        attribute = reading.stream.partition(".")[2]
        text = f"{attribute} of {reading.key} = {self.value(reading.stream, reading.value)}"
        return ShownReading(
            id=reading.id,
            time=reading.time,
            stream=reading.stream,
            key=reading.key,
            value=reading.value,
            text=text,
            source=reading.source,
        )

    def _relationship(self, term: StateTerm, negated: bool) -> str:
        words = [term.first.alias, "is", *(["not"] if negated else []), self._name(term)]
        if term.parameter is not None:
            is_length = relations.get(term.function).parameter_kind == "length"
            words += [value_text(term.parameter) + (" m" if is_length else ""), "of"]
        return " ".join([*words, term.second.alias])

    def _name(self, term: StateTerm) -> str:
        concepts = (term.first.concept, term.second.concept)
        for one in self._ontology.relationships.values():
            if one.function == term.function and (one.first[0], one.second[0]) == concepts:
                return one.name
        return term.function

    def _operand(self, operand: Operand, term: StateTerm, unit: str) -> str:
        match operand:
            case Constant(value) if self.is_truth(term):
                return "true" if value in (1.0, "true") else "false"
            case Constant(value):
                text = print_value(value) if isinstance(value, str) else value_text(value)
                return f"{text} {unit}" if unit and not isinstance(value, str) else text
            case SideValue(side, attribute):
                return f"{attribute} of {(term.first, term.second)[side].alias}"
            case Measure(function, of) | LookedUp(function, of):
                aliases = [(term.first, term.second)[each.side].alias for each in of]
                named = function if isinstance(operand, LookedUp) else self._declared_name(operand)
                return f"{named}({', '.join(aliases)})"

    def is_truth(self, term: StateTerm) -> bool:
        """Whether a comparison is about booleans, whose constants a plan stores as numbers."""
        assert term.compared is not None
        sides = (term.first, term.second)
        return any(
            isinstance(one, SideValue)
            and self._ontology.concepts[sides[one.side].concept].get(one.attribute) == "boolean"
            for one in (term.compared.left, term.compared.right)
        )

    def _declared_name(self, measure: Measure) -> str:
        """The site's name of a measure."""
        for one in self._ontology.functions.values():
            if one.measure == measure.function and len(one.of) == len(measure.of):
                return one.name
        return measure.function

    def _declared_unit(self, measure: str) -> str:
        found = [one.unit for one in self._ontology.functions.values() if one.measure == measure]
        return found[0] if found else ""


def value_text(value: Any) -> str:
    """A number with at most four decimals, a quoted text, a boolean as a word."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return print_value(value)
    if value is None:
        return "missing"
    rounded = round(float(value), 4)
    text = f"{rounded:.4f}".rstrip("0").rstrip(".") if abs(rounded) < 1e15 else repr(float(value))
    if text in ("0", "-0", "") and value != 0:
        return f"{float(value):.2g}"
    return "0" if text in ("-0", "") else text


def approximate(number: float) -> str:
    """A computed number with three significant digits.

    >>> approximate(10.6301458), approximate(0.5), approximate(1234.5678), approximate(0)
    ('10.6', '0.5', '1235', '0')
    """
    return value_text(round(number)) if abs(number) >= 1_000 else f"{number:.3g}"


def duration(span_ms: int) -> str:
    """`30 ms`, `5 s`, `2 h`, `9 min 15 s`.

    >>> duration(30), duration(5000), duration(7_200_000), duration(1250), duration(555_000)
    ('30 ms', '5 s', '2 h', '1.25 s', '9 min 15 s')
    """
    if span_ms < 1_000:
        return f"{span_ms} ms"
    if span_ms < 60_000:
        return f"{value_text(span_ms / 1_000)} s"
    minutes, rest = divmod(span_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes)
    return " ".join(parts + [f"{value_text(rest / 1_000)} s"] * bool(rest))


def time_mark(time_ms: int | None) -> str:
    """Marks a time within a sentence; `with_times` replaces it once the reference is known."""
    return f"{_OPEN}{time_ms}{_CLOSE}"


def with_times(text: str, reference_ms: int) -> str:
    """Replaces the time marks of a sentence by times and their distance from the reference.

    >>> with_times(f"since {time_mark(1_500)}", 1_000)
    'since 00:00:01.500 (+0.5 s)'
    """
    return _TIMES.sub(lambda found: moment(int(found[1]), reference_ms), text)


def moment(time_ms: int, reference_ms: int) -> str:
    """A time without the date if it is the reference's day, and the distance from it."""
    text, same = format_time(time_ms), format_time(reference_ms)
    if text[:10] == same[:10]:
        text = text[11:].removesuffix("Z")
    return f"{text} ({relative(time_ms - reference_ms)})"


def relative(shift_ms: int) -> str:
    """`+0.5 s`, `-2 min`; `±0` for the reference itself.

    >>> relative(500), relative(-120_000), relative(0), relative(90_061_000)
    ('+0.5 s', '-2 min', '±0', '+25 h 1 min 1 s')
    """
    if not shift_ms:
        return "±0"
    sign, size = ("+" if shift_ms > 0 else "-"), abs(shift_ms)
    return f"{sign}{value_text(size / 1_000)} s" if size < 1_000 else sign + duration(size)


def bindings_text(bindings: Mapping[str, str]) -> str:
    """`A = p17, R = lab`."""
    return ", ".join(f"{alias} = {identity}" for alias, identity in sorted(bindings.items()))


class ClauseWords:
    """Texts for the clauses of one plan."""

    def __init__(self, plan: Plan, wording: Wording) -> None:
        self._plan, self._wording = plan, wording

    def clause(self, clause: Clause) -> str:
        text = " OR ".join(self.child(child) for child in clause.children)
        return text if clause.window_ms is None else f"{text} within {duration(clause.window_ms)}"

    def child(self, child: Child) -> str:
        """A child of a clause in the syntax of policies."""
        parts = [
            self._wording.term(self._plan.terms[number], negated=negated)
            for number, negated in signed_terms(child)
        ]
        text = " FOLLOWED-BY ".join(parts)
        if not isinstance(child, Sequence) or child.window_ms is None:
            return text
        return f"{text} within {duration(child.window_ms)}"

    def part(self, part: Part) -> str:
        terms, wording = self._plan.terms, self._wording
        match part:
            case Occurs(term):
                return wording.term(terms[term])
            case OrderedTerms(first, second):
                return f"{wording.term(terms[first])} FOLLOWED-BY {wording.term(terms[second])}"
            case NotFollowed(first, absent):
                nots = " OR ".join(wording.term(terms[one], negated=True) for one in absent)
                return f"{wording.term(terms[first])} FOLLOWED-BY {nots}"
            case NotPreceded(absent, second):
                nots = " OR ".join(wording.term(terms[one], negated=True) for one in absent)
                return f"{nots} FOLLOWED-BY {wording.term(terms[second])}"
