"""Prints the tree of a policy with a situation as canonical text; parsing the text gives the same
tree except for places. [SI-1, SI-2]"""

from __future__ import annotations

from rapport.core.times import format_duration
from rapport.policy.language.printer import (
    OPERATOR_WORDS,
    print_action,
    print_definition,
    print_measured,
    print_property,
    print_value,
)
from rapport.policy.language.situation_times import MONTHS, WEEKDAYS
from rapport.policy.language.situation_tree import (
    Aggregate,
    AndOf,
    Between,
    Calculation,
    CalendarDay,
    Condition,
    Day,
    DayTable,
    InUnit,
    Lasting,
    Not,
    OneOf,
    OrOf,
    Quantified,
    RelationshipAtom,
    Silence,
    SituationTree,
    TimeOfDay,
    Value,
    ValueComparison,
    Weekdays,
)
from rapport.policy.language.tree import AttributeOf, Call, Quantity


def print_situation(tree: SituationTree) -> str:
    """The policy with one condition per line."""
    lines = []
    if tree.concepts:
        lines += ["concepts", *(f"  {print_definition(concept)}" for concept in tree.concepts)]
        lines += [f"  {first} and {second} may be the same" for first, second in tree.may_be_same]
    lines += ["situation", *section_lines(tree.situation)]
    if tree.once_per_ms is not None:
        lines.append(f"  at most once per {format_duration(tree.once_per_ms)}")
    if tree.cleared_by is not None:
        lines += ["cleared by", *section_lines(tree.cleared_by)]
    lines += ["actions", *(line for action in tree.actions for line in print_action(action))]
    if tree.cleared_actions:
        lines.append("actions when cleared")
        lines += [line for action in tree.cleared_actions for line in print_action(action)]
    return "\n".join(lines) + "\n"


def section_lines(condition: Condition) -> list[str]:
    """The lines of a section, one for each part of its outermost AND."""
    if not isinstance(condition, AndOf):
        return [f"  {print_situation_condition(condition)}"]
    return [f"  {print_situation_condition(part)}" for part in condition.parts]


def print_situation_condition(condition: Condition) -> str:
    """One line, with parentheses where the language needs them."""
    match condition:
        case AndOf(parts):
            return " AND ".join(_part(part) for part in parts)
        case OrOf(parts):
            return " OR ".join(_part(part) for part in parts)
        case Lasting(part, duration_ms):
            return f"{_state(part)} for {format_duration(duration_ms)}"
        case Not(part):
            return _negated(part)
        case Silence(attribute, alias, duration_ms):
            return f"no {attribute or 'event'} of {alias} for {format_duration(duration_ms)}"
        case Quantified():
            return _quantified(condition)
        case _:
            return _atom(condition, "")


def _part(part: Condition) -> str:
    text = print_situation_condition(part)
    return f"({text})" if isinstance(part, AndOf | OrOf) else text


def _state(part: Condition) -> str:
    """The part before `for`."""
    text = print_situation_condition(part)
    enclosed = isinstance(part, AndOf | OrOf | Lasting | Silence) or text.startswith("NOT ")
    return f"({text})" if enclosed else text


def _negated(part: Condition) -> str:
    match part:
        case RelationshipAtom() | Between() | OneOf() | TimeOfDay():
            return _atom(part, "not ")
        case ValueComparison() if part.operator not in ("=", "!="):
            return _atom(part, "is not ")
        case _:
            return f"NOT {_state(part)}"


def _atom(
    atom: RelationshipAtom | Between | OneOf | TimeOfDay | ValueComparison, negation: str
) -> str:
    match atom:
        case RelationshipAtom():
            parameter = f"{atom.parameter} of " if atom.parameter else ""
            return f"{atom.first} is {negation}{atom.function} {parameter}{atom.second}"
        case Between(value, low, high):
            ends = f"{print_situation_value(low)} and {print_situation_value(high)}"
            return f"{print_situation_value(value)} is {negation}between {ends}"
        case OneOf(value, choices):
            listed = ", ".join(print_measured(choice) for choice in choices)
            return f"{print_situation_value(value)} is {negation}one of ({listed})"
        case TimeOfDay():
            return f"time is {negation}{_time(atom)}"
        case ValueComparison(left, operator, right):
            constant = isinstance(right, Quantity)
            words = (
                OPERATOR_WORDS[operator] if constant or operator not in ("=", "!=") else operator
            )
            sides = print_situation_value(left), print_situation_value(right)
            return f"{sides[0]} {negation}{words} {sides[1]}"


def _quantified(condition: Quantified) -> str:
    words = condition.quantifier
    number = f" {condition.number}" if words in ("at least", "at most") else ""
    properties = " ".join(print_property(item) for item in condition.properties)
    enclosed = f" ({properties})" if properties else ""
    inner = print_situation_condition(condition.condition)
    return f"{words}{number} {condition.concept} {condition.alias}{enclosed} with ({inner})"


def _time(time: TimeOfDay) -> str:
    words = []
    if time.first_minute is not None and time.end_minute is not None:
        words.append(f"between {clock_text(time.first_minute)} and {clock_text(time.end_minute)}")
    if time.days:
        words.append("on " + ", ".join(map(day_text, time.days)))
    if time.zone:
        words.append(f"in {print_value(time.zone)}")
    return " ".join(words)


def clock_text(minutes: int) -> str:
    """`06:30` for minutes of the day."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


def day_text(day: Day) -> str:
    """`24 Dec`, `Mon-Fri`, or the name of a table."""
    match day:
        case CalendarDay(number, month):
            return f"{number} {MONTHS[month - 1]}"
        case Weekdays(first, last):
            return WEEKDAYS[first] + (f"-{WEEKDAYS[last]}" if last != first else "")
        case DayTable(table):
            return table


def print_situation_value(value: Value) -> str:
    """A measured value, with parentheses where precedence needs them."""
    match value:
        case Quantity() | AttributeOf() | Call():
            return print_measured(value)
        case InUnit(inner, unit):
            return f"{_factor(inner, also=InUnit)} in {unit}"
        case Calculation(left, operator, right) if operator in ("*", "/"):
            first = print_situation_value(left)
            if isinstance(left, Calculation) and left.operator in ("+", "-"):
                first = f"({first})"
            return f"{first} {operator} {_factor(right)}"
        case Calculation(left, operator, right):
            second = print_situation_value(right)
            if isinstance(right, Calculation) and right.operator in ("+", "-"):
                second = f"({second})"
            return f"{print_situation_value(left)} {operator} {second}"
        case Aggregate():
            return _aggregate(value)


def _factor(value: Value, *, also: type = Calculation) -> str:
    text = print_situation_value(value)
    return f"({text})" if isinstance(value, Calculation | also) else text


def _aggregate(value: Aggregate) -> str:
    of = value.of
    inner = (
        print_measured(of) if isinstance(of, AttributeOf) else f"({print_situation_condition(of)})"
    )
    rank = "" if value.percentile is None else f" {print_value(value.percentile)}"
    least = "" if value.at_least is None else f" (at least {value.at_least} readings)"
    window = format_duration(value.window_ms)
    return f"{value.function}{rank} of {inner} in the last {window}{least}"
