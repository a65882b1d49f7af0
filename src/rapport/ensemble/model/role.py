"""Roles: what an ensemble asks of a component, as a set of typed fields. [EN-1]

`isinstance(x, Driver)` is true for components of that class and for replicas of components that
say they are one and have its fields, whatever their class is called on their own node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, dataclass_transform

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.model.fields import Field, fields_of, published_shape, take_declared


def _check_names(cls: RoleType) -> None:
    """Raises InvalidInput for fields that would hide something."""
    inherited = [base for base in cls.__mro__[1:] if isinstance(base, RoleType)]
    for name in cls.declared_fields:
        taken = name in ("created_ms", "now_ms") or (name == "id" and inherited)
        if taken or any(name in vars(base) for base in inherited):
            raise InvalidInput(
                f"{cls.__name__}: a field cannot be called {name!r}",
                code="ensemble.bad_field",
                hint="every component has id, now_ms and created_ms already"
                if taken
                else f"{name!r} is something else in a class that it is made from",
            )


@dataclass_transform(
    kw_only_default=True, eq_default=False, field_specifiers=(dataclasses.field, dataclasses.Field)
)
class RoleType(type):
    """The type of roles and components: knows their fields, and judges replicas."""

    declared_fields: dict[str, Any]
    """The fields that this very class declares, with their defaults."""
    role_plan: RolePlan
    """Of this very class; see `plan_of`."""
    check_definition: Callable[[], None]

    def __new__(
        metaclass, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> RoleType:
        made = super().__new__(metaclass, name, bases, namespace, **options)
        made.declared_fields = take_declared(made)
        _check_names(made)
        made.check_definition()
        return made

    def __instancecheck__(cls, instance: Any) -> bool:
        kind = type(instance)
        if isinstance(kind, RoleType):
            return cls in kind.__mro__
        judge = getattr(kind, "is_replica_of", None)
        return judge is not None and bool(judge(instance, cls))


class Role(metaclass=RoleType):
    """A set of fields that a component may have; subclass it and annotate them."""

    id: str
    """The component's own id, the same for all its versions."""

    if TYPE_CHECKING:

        @property
        def created_ms(self) -> int:
            """When this knowledge was published: its node's wall clock; of a local one: now."""

        @property
        def now_ms(self) -> int:
            """The wall clock of this node when the process or evaluation began."""

    @classmethod
    def check_definition(cls) -> None:
        """Called when the class is defined: for what can be known by then."""

    def __init__(self, **_knowledge: Any) -> None:
        raise InvalidInput(
            f"{type(self).__name__} is a role; only components are made",
            code="ensemble.not_a_component",
            hint=f"class My{type(self).__name__}(Component, {type(self).__name__}): ...",
        )


class RolePlan(NamedTuple):
    """What is known of a role or component class, worked out once."""

    name: str
    fields: dict[str, Field]
    """All but those that every component has."""
    roles: tuple[str, ...]
    """Its own name and those of its roles and base components: they travel with the knowledge."""
    shape: type[msgspec.Struct]
    decoder: msgspec.msgpack.Decoder[Any]
    local: frozenset[str]
    published: tuple[str, ...]


def plan_of(cls: RoleType) -> RolePlan:
    """The plan of a role or component class; raises InvalidInput for fields that cannot be.

    Worked out at first use, as types may be defined after the class; kept with the class.
    """
    plan: RolePlan | None = cls.__dict__.get("role_plan")
    if plan is None:
        plan = cls.role_plan = _plan(cls)
    return plan


def _plan(cls: RoleType) -> RolePlan:
    fields = fields_of(cls)
    shape = published_shape(cls, fields)
    return RolePlan(
        cls.__name__,
        {field.name: field for field in fields if field.name != "id"},
        role_names(cls),
        shape,
        msgspec.msgpack.Decoder(shape),
        frozenset(field.name for field in fields if field.is_local),
        shape.__struct_fields__,
    )


def role_names(cls: type) -> tuple[str, ...]:
    """The names of the class and of its roles and base components, its own first.

    Role and Component themselves are no names: everybody is one.
    """
    return tuple(base.__name__ for base in cls.__mro__ if is_named(base))


def is_named(cls: type) -> bool:
    """Whether the class is a role or component that somebody defined."""
    return isinstance(cls, RoleType) and not cls.__dict__.get("is_everybody", cls is Role)


def field_names(cls: type) -> frozenset[str]:
    """The names of all fields, also while their types are not known yet."""
    return frozenset(
        name for base in cls.__mro__ for name in base.__dict__.get("declared_fields", ())
    )
