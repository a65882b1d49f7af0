"""Components: knowledge fields, the roles they play, and processes that work on the fields. [EN-1]

A process runs by time or when a field changes. It works on a scratch copy of the component; its
changes are applied as one when it returns, and dropped when it raises.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import msgspec

from rapport.core.errors import InvalidInput, nearest_names
from rapport.core.times import parse_duration
from rapport.ensemble.model.role import (
    Field,
    Role,
    copied,
    field_names,
    is_fixed,
    is_same,
    plan_of,
    unknown_field,
)

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
                found[name] = _checked_plan(cls, plan, known)
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


def _checked_plan(cls: type, plan: ProcessPlan, known: frozenset[str]) -> ProcessPlan:
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


LONGEST_ID = 200
_ORIGIN = "_origin"
_OWN = frozenset((_ORIGIN, "created_ms", "now_ms"))


class NoSuchField(AttributeError):
    """A process or an ensemble used a field that does not exist, or that it may not read."""

    def __init__(self, message: str, code: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.code, self.hint = message, code, hint


class Component(Role):
    """An autonomous unit: knowledge fields, and processes that work on them.

    Made with its id and its fields by name; values are checked against their types. Its node
    publishes the fields that are not `Local`.
    """

    is_everybody: ClassVar[bool] = True
    process_plans: ClassVar[tuple[ProcessPlan, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.is_everybody = False

    @classmethod
    def check_definition(cls) -> None:
        """Raises InvalidInput for processes that name what is no field."""
        cls.process_plans = processes_of(cls, field_names(cls))

    def __init__(self, **knowledge: Any) -> None:
        """Raises InvalidInput for unknown names, missing values and values of the wrong type."""
        plan = plan_of(type(self))
        values = {"id": checked_id(knowledge.pop("id", None))}
        for name in knowledge:
            if name not in plan.fields:
                raise unknown_field(f"field of {plan.name}", name, plan.fields)
        for name, field in plan.fields.items():
            given = knowledge[name] if name in knowledge else field.first_value()
            values[name] = checked(given, field, plan.name)
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.__dict__.get('id', '?')}>"

    if not TYPE_CHECKING:  # a type checker would else take every name for a field

        def __getattr__(self, name: str) -> Any:
            own = self.__dict__
            origin = own.get(_ORIGIN)
            if origin is not None and name in origin:
                value = own[name] = copied(origin[name])
                return value
            raise _no_such_field(self, name)


def scratch(
    values: Mapping[str, Any],
    cls: type[Component],
    now_ms: int,
    readable: frozenset[str] | None = None,
) -> Component:
    """A component to work on: whatever is done to it, `values` stay as they are.

    What can change is copied when it is first looked at. Fields that are not readable are not
    there; Local ones and private attributes are shared.
    """
    made = cls.__new__(cls)
    own = made.__dict__
    local = plan_of(cls).local
    origin: dict[str, Any] = {}
    for name, value in values.items():
        if readable is not None and name not in readable and _is_knowledge(name, local):
            continue
        if name in local or name[0] == "_" or is_fixed(value):
            own[name] = value
        else:
            origin[name] = value
    own[_ORIGIN] = origin
    own["created_ms"] = own["now_ms"] = now_ms
    return made


def values_of(worked_on: Component) -> dict[str, Any]:
    """All values of a scratch component."""
    own = worked_on.__dict__
    values = {**own.get(_ORIGIN, {}), **own}
    for name in _OWN:
        values.pop(name, None)
    return values


def changes_in(worked_on: Component, before: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a scratch component that are not what they were; a field that was deleted
    is not among them.
    """
    local = plan_of(type(worked_on)).local
    changed: dict[str, Any] = {}
    for name, value in worked_on.__dict__.items():
        if name in _OWN:
            continue
        old = before.get(name, changed)  # the dictionary itself: no value is that
        if value is old or (name not in local and is_same(value, old)):
            continue
        changed[name] = value
    return changed


def checked(value: Any, field: Field, owner: str) -> Any:
    """The value as its type wants it; raises InvalidInput."""
    if field.is_local:
        return value
    try:
        return msgspec.convert(value, field.type, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidInput(
            f"{owner}.{field.name} cannot be {_shown(value)}: {error}",
            code="ensemble.bad_value",
            hint=f"it is declared as {_named(field.type)}",
        ) from None


def checked_id(given: Any) -> str:
    """The id of a component; raises InvalidInput."""
    if isinstance(given, str) and 1 <= len(given) <= LONGEST_ID and given.isprintable():
        return given
    raise InvalidInput(
        f"a component needs an id, {_shown(given)} is none",
        code="ensemble.bad_id",
        hint=f"a text of 1 to {LONGEST_ID} printable characters that no other component has",
    )


def _no_such_field(component: Component, name: str) -> NoSuchField:
    cls = type(component)
    known = field_names(cls)
    if name in known and _ORIGIN in component.__dict__:
        return NoSuchField(
            f"the field {name!r} is not declared as read by this process",
            "ensemble.undeclared_read",
            f'add it: reads=(..., "{name}")',
        )
    near = nearest_names(name, known) if not name.startswith("_") else ()
    hint = f"did you mean {near[0]!r}?" if near else f"its fields: {', '.join(sorted(known))}"
    return NoSuchField(f"{cls.__name__} has no {name!r}", "ensemble.unknown_field", hint)


def _is_knowledge(name: str, local: frozenset[str]) -> bool:
    return not (name in local or name[0] == "_" or name == "id")


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except Exception:  # of the value's own class
        return f"a {type(value).__name__}"


def _named(kind: Any) -> str:
    is_class = isinstance(kind, type) and typing.get_origin(kind) is None
    return kind.__name__ if is_class else str(kind).replace("typing.", "")
