"""Prints the plan of a situation for people, in a stable form: one condition per line, those inside
another indented. [SI-1, SI-12]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.core.times import format_duration
from rapport.policy.language.printer import constraints_text, print_value
from rapport.policy.language.situation_printer import clock_text, day_text
from rapport.policy.language.situation_tree import CalendarDay, DayTable, Weekdays
from rapport.policy.language.tree import SourceSpan
from rapport.policy.situation_plan import (
    AggregateValue,
    AllOf,
    AnyPart,
    Arithmetic,
    BoundAlias,
    ComparedValues,
    Condition,
    ConvertedValue,
    CountedInstances,
    CountedTerm,
    DayRange,
    FixedValue,
    FunctionValue,
    Negation,
    PresentValue,
    RelatedInstances,
    SilentStream,
    SituationPlan,
    Sustained,
    TableDays,
    TimeWindow,
    Value,
    YearDay,
)

_NOWHERE = SourceSpan(0, 0)
_INDENT = "  "


def situation_text(plan: SituationPlan) -> str:
    """The plan as lines: aliases, options, the situation, its end, actions."""
    lines = [f"policy {plan.policy}"]
    if plan.aliases:
        lines += ["aliases", *(f"{_INDENT}{bound_text(bound)}" for bound in plan.aliases)]
    lines += [f"distinct {first}, {second}" for first, second in plan.distinct]
    if plan.once_per_ms is not None:
        lines.append(f"at most once per {format_duration(plan.once_per_ms)}")
    lines += ["situation", *condition_lines(plan.situation)]
    if plan.cleared_by is not None:
        lines += ["cleared by", *condition_lines(plan.cleared_by)]
    lines += ["actions", *action_lines(plan.actions, plan.deliveries)]
    if plan.cleared_actions:
        lines.append("actions when cleared")
        lines += action_lines(plan.cleared_actions, plan.cleared_deliveries)
    return "\n".join(lines)


def bound_text(bound: BoundAlias) -> str:
    """`A: person where status='guest', known from person.position`."""
    where = constraints_text(bound.constraints)
    text = f"{bound.alias}: {bound.concept}" + (f" where {where}" if where else "")
    return f"{text}, known from {', '.join(bound.streams)}" if bound.streams else text


def condition_lines(condition: Condition, depth: int = 1) -> Iterator[str]:
    """The condition, and what is in it one step further in."""
    parts: tuple[Condition, ...] = ()
    match condition:
        case AllOf():
            text, parts = "all" + " of one atom" * condition.is_atom, condition.parts
        case AnyPart():
            text, parts = "any" + " of one atom" * condition.is_atom, condition.parts
        case Negation():
            text, parts = "not", (condition.part,)
        case Sustained():
            text, parts = f"for {format_duration(condition.duration_ms)}", (condition.part,)
        case CountedInstances():
            number = f"{condition.quantifier} {condition.number}"
            text, parts = f"{number} of {bound_text(condition.bound)}", (condition.condition,)
        case _:
            text = atom_text(condition)
    yield _INDENT * depth + text
    for part in parts:
        yield from condition_lines(part, depth + 1)


def atom_text(atom: ComparedValues | RelatedInstances | SilentStream | TimeWindow) -> str:
    """One line: `temperature of S > 30`."""
    match atom:
        case ComparedValues():
            return f"{value_text(atom.left)} {atom.operator} {value_text(atom.right)}"
        case RelatedInstances():
            ends = [value_text(atom.first), value_text(atom.second)]
            ends += [] if atom.parameter is None else [print_value(atom.parameter)]
            return f"{atom.function}({', '.join(ends)})"
        case SilentStream():
            duration = format_duration(atom.duration_ms)
            return f"silent {duration} {', '.join(atom.streams)} of {atom.alias}"
        case TimeWindow():
            days = f" on {', '.join(map(_day, atom.days))}" if atom.days else ""
            stretch = f"{clock_text(atom.first_minute)}-{clock_text(atom.end_minute)}"
            return f"time {stretch}{days} in {atom.zone}"


def value_text(value: Value) -> str:
    """A value in its canonical unit, with parentheses around calculations in others."""
    match value:
        case FixedValue():
            return print_value(value.value)
        case PresentValue():
            return f"{value.attribute} of {value.alias}"
        case Arithmetic():
            return f"{_operand(value.left)} {value.operator} {_operand(value.right)}"
        case ConvertedValue():
            offset = f" + {print_value(value.offset)}" if value.offset else ""
            return f"{_operand(value.value)} * {print_value(value.factor)}{offset}"
        case FunctionValue():
            return f"{value.function}({', '.join(map(value_text, value.of))})"
        case AggregateValue():
            rank = "" if value.percentile is None else f" {print_value(value.percentile)}"
            window = format_duration(value.window_ms)
            least = f" (at least {value.at_least})" if value.at_least > 1 else ""
            return f"{value.function}{rank}({value_text(value.of)}, {window}){least}"
        case CountedTerm():
            inner = " ".join(line.strip() for line in condition_lines(value.term))
            window = format_duration(value.window_ms)
            return f"count({inner}, readings of {value.alias}, {window})"


def _operand(value: Value) -> str:
    text = value_text(value)
    return f"({text})" if isinstance(value, Arithmetic | ConvertedValue) else text


def _day(day: DayRange | YearDay | TableDays) -> str:
    match day:
        case DayRange(first, last):
            return day_text(Weekdays(first, last))
        case YearDay(month, number):
            return day_text(CalendarDay(number, month))
        case TableDays(table):
            return day_text(DayTable(table, _NOWHERE))


def action_lines(
    actions: tuple[str, ...], deliveries: tuple[tuple[str, ...], ...]
) -> Iterator[str]:
    for number, action in enumerate(actions):
        yield f"{_INDENT}{action}"
        for line in deliveries[number] if deliveries else ():
            yield f"{_INDENT * 2}{line}"
