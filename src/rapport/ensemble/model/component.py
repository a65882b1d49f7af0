"""Components: knowledge in fields, roles, and processes that work on it. [EN-1]"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rapport.core.errors import InvalidInput, nearest_names
from rapport.ensemble.model.copying import copied, is_fixed, is_same
from rapport.ensemble.model.fields import Field, unknown_field
from rapport.ensemble.model.processes import ProcessPlan, processes_of
from rapport.ensemble.model.role import Role, field_names, plan_of

LONGEST_ID = 200
_ORIGIN = "_origin"
_OWN = frozenset((_ORIGIN, "created_ms", "now_ms"))


class NoSuchField(AttributeError):
    """A process or an ensemble asked for a field that there is not, or not for it."""

    def __init__(self, message: str, code: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.code, self.hint = message, code, hint


class Component(Role):
    """An autonomous unit: what it knows, and what it does with that.

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
