"""Processes: what a component does by itself, with declared inputs and outputs. [EN-1]"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from rapport.core.errors import InvalidInput
from rapport.core.times import parse_duration
from rapport.ensemble.model.fields import unknown_field

Function = TypeVar("Function", bound=Callable[..., None])
Names = str | Sequence[str]

MARK = "rapport_process"
LONGEST_MS = 366 * 86_400_000


class ProcessPlan(NamedTuple):
    """When a process runs and what it may touch."""

    name: str
    every_ms: int
    """0: not by time."""
    on_change: tuple[tuple[str, ...], ...]
    """Paths, each a field and the steps below it; empty: not by change."""
    reads: frozenset[str] | None
    """The fields it is given; none: all."""
    writes: frozenset[str]


def process(
    *,
    every: str = "",
    on_change: Names = (),
    reads: Names | None = None,
    writes: Names = (),
) -> Callable[[Function], Function]:
    """Makes a method a process of its component.

    It works on a copy of the knowledge; what it changed is taken over in one piece when it
    returns, and not at all when it raises or changed a field that it did not declare.

    Args:
        every: a period, such as "1 s".
        on_change: fields, or paths below them ("route.destination"); it runs when the value
            differs from what it was.
        reads: the fields it is given, beside those it names otherwise; without it, all.
        writes: the fields that it may change.
    """
    plan = ProcessPlan(
        "",
        period_ms(every, "a process") if every else 0,
        tuple(tuple(path.split(".")) for path in _names(on_change)),
        None if reads is None else frozenset(_names(reads)),
        frozenset(_names(writes)),
    )

    def mark(function: Function) -> Function:
        _check_function(function, plan)
        setattr(function, MARK, plan._replace(name=function.__name__))
        return function

    return mark


def processes_of(cls: type, fields: Iterable[str]) -> tuple[ProcessPlan, ...]:
    """The processes of a component class, its bases' first; raises InvalidInput for names that are
    no field.
    """
    known = frozenset(fields) - {"id"}
    found: dict[str, ProcessPlan] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            found.pop(name, None)  # a subclass may replace a process by a plain method
            plan = getattr(member, MARK, None)
            if isinstance(plan, ProcessPlan):
                found[name] = _checked(cls, plan, known)
    return tuple(found.values())


def period_ms(text: str, what: str) -> int:
    """The period in ms; raises InvalidInput unless it is between 1 ms and a year."""
    try:
        period = parse_duration(text)
    except InvalidInput as error:
        raise InvalidInput(
            f"{what} has no such period: {error.message}",
            code="ensemble.bad_schedule",
            hint=error.hint,
        ) from None
    if not 1 <= period <= LONGEST_MS:
        raise InvalidInput(
            f"{what} cannot have the period {text!r}",
            code="ensemble.bad_schedule",
            hint="from 1 ms to 366 days",
        )
    return period


def _checked(cls: type, plan: ProcessPlan, known: frozenset[str]) -> ProcessPlan:
    named = [path[0] for path in plan.on_change] + sorted(plan.reads or ()) + sorted(plan.writes)
    for name in named:
        if name not in known:
            raise unknown_field(f"field of {cls.__name__} (process {plan.name})", name, known)
    if plan.reads is None:
        return plan
    return plan._replace(reads=plan.reads | plan.writes | {path[0] for path in plan.on_change})


def _check_function(function: Any, plan: ProcessPlan) -> None:
    name = getattr(function, "__name__", str(function))
    if not plan.every_ms and not plan.on_change:
        raise InvalidInput(
            f"the process {name!r} never runs",
            code="ensemble.bad_schedule",
            hint='say when: every="1 s", on_change="position", or both',
        )
    waits = inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function)
    if waits or inspect.isasyncgenfunction(function) or not inspect.isfunction(function):
        raise InvalidInput(
            f"the process {name!r} is not a plain function",
            code="ensemble.bad_process",
            hint="write def, not async def, and no yield: processes run in threads of their own",
        )


def _names(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
