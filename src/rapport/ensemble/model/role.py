"""Roles: named sets of typed knowledge fields, and the classes that declare them. [EN-1]

`isinstance(x, Driver)` is true for components of that class, and for replicas of remote components
that list the role and have its fields. Values are copied only where they can change.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import inspect
import typing
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import msgspec

from rapport.core.errors import InvalidInput, UnknownName

T = TypeVar("T")


class _LocalMark:
    """Marks a field that stays on its node."""


_LOCAL = _LocalMark()
Local = Annotated[T, _LOCAL]
"""A field that is not published: a sensor, a connection, a secret. Never copied."""

RESERVED = frozenset(("created_ms", "id", "now_ms"))
"""Names that every component and replica has besides its fields."""
MISSING = dataclasses.MISSING


class Field(typing.NamedTuple):
    """One field of a role or component."""

    name: str
    type: Any
    is_local: bool
    default: Any
    """MISSING: a value is required; a dataclasses.Field: its default or factory."""

    def first_value(self) -> Any:
        """The value of a new component that was given none; raises InvalidInput."""
        default = self.default
        if isinstance(default, dataclasses.Field):
            if default.default_factory is not MISSING:
                return default.default_factory()
            default = default.default
        if default is MISSING:
            raise InvalidInput(
                f"the field {self.name!r} has no value",
                code="ensemble.missing_value",
                hint=f"give it when the component is made, or a default: {self.name}: ... = ...",
            )
        return default if self.is_local else copied(default)

    @property
    def has_default(self) -> bool:
        """Whether a component need not be given it."""
        if isinstance(self.default, dataclasses.Field):
            return not (self.default.default is MISSING and self.default.default_factory is MISSING)
        return self.default is not MISSING


def take_declared(cls: type) -> dict[str, Any]:
    """The fields that this very class declares, with their defaults; takes the defaults out of the
    class, so that a component has only what it was given.
    """
    declared: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(cls).items():
        if name.startswith("_") or _is_class_variable(annotation):
            continue
        declared[name] = cls.__dict__.get(name, MISSING)
        if declared[name] is not MISSING:
            delattr(cls, name)
    return declared


def fields_of(cls: type) -> tuple[Field, ...]:
    """All fields, those of its roles first; raises InvalidInput for what cannot be meant."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidInput(
            f"{cls.__name__}: the type of a field is not known: {error}",
            code="ensemble.bad_field",
            hint="types of fields are defined at the top of a file, before they are used",
        ) from None
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, default in base.__dict__.get("declared_fields", {}).items():
            if name not in defaults or default is not MISSING:
                defaults[name] = default
    fields = tuple(_field(name, hints[name], default) for name, default in defaults.items())
    for field in fields:
        _check_agreement(cls, field)
    return fields


def published_shape(cls: type, fields: typing.Iterable[Field]) -> type[msgspec.Struct]:
    """A struct of the published fields: what a replica has to have to be taken for one."""
    shape: list[Any] = []
    for field in fields:
        if field.is_local or field.name in RESERVED:
            continue
        _check_publishable(cls, field)
        if not field.has_default:
            shape.append((field.name, field.type))
            continue
        value = field.first_value()
        default: Any = (
            value if is_fixed(value) else msgspec.field(default_factory=field.first_value)
        )
        shape.append((field.name, field.type, default))
    return msgspec.defstruct(cls.__name__, shape, kw_only=True)


def unknown_field(kind: str, name: str, known: typing.Iterable[str]) -> UnknownName:
    """The error for an undeclared field; names the nearest one."""
    return UnknownName(kind, name, sorted(known), code="ensemble.unknown_field")


def _field(name: str, hint: Any, default: Any) -> Field:
    is_local = _LOCAL in getattr(hint, "__metadata__", ())
    return Field(name, hint, is_local, default)


def _is_class_variable(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.replace("typing.", "").startswith("ClassVar")
    return annotation is ClassVar or typing.get_origin(annotation) is ClassVar


def _check_agreement(cls: type, field: Field) -> None:
    """Two roles that mean different things by one name cannot both be played."""
    if field.name in cls.__dict__.get("declared_fields", {}):
        return
    types = {
        repr(typing.get_type_hints(base, include_extras=True)[field.name]): base.__name__
        for base in reversed(cls.__mro__)
        if field.name in base.__dict__.get("declared_fields", {})
    }
    if len(types) > 1:
        kinds = ", ".join(f"{owner}: {kind}" for kind, owner in types.items())
        raise InvalidInput(
            f"{cls.__name__}: its roles disagree about the field {field.name!r} ({kinds})",
            code="ensemble.bad_field",
            hint="rename it in one role, or declare it in the component with a type that fits both",
        )


def _check_publishable(cls: type, field: Field) -> None:
    odd = _odd_type(msgspec.inspect.type_info(field.type), set())
    if odd:
        raise InvalidInput(
            f"{cls.__name__}: the field {field.name!r} cannot be published: {odd} is not data",
            code="ensemble.bad_field",
            hint="use texts, numbers, lists, dictionaries, structs or dataclasses; what stays on "
            f"its node is declared {field.name}: Local[{odd}]",
        )


def _odd_type(info: Any, seen: set[int]) -> str:
    """The name of a class in the type that is no data; empty: there is none."""
    if id(info) in seen:
        return ""
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls.__name__
    if isinstance(info, tuple):
        return next(filter(None, (_odd_type(part, seen) for part in info)), "")
    if isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)):
        parts = tuple(
            getattr(info, name) for name in info.__struct_fields__ if "default" not in name
        )
        return _odd_type(parts, seen)
    return ""


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
    """Fields, role names and decoder of a role or component class, computed once."""

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

    Role and Component themselves are not listed: every component is one.
    """
    return tuple(base.__name__ for base in cls.__mro__ if is_named(base))


def is_named(cls: type) -> bool:
    """Whether the class is a role or component other than the base classes."""
    return isinstance(cls, RoleType) and not cls.__dict__.get("is_everybody", cls is Role)


def field_names(cls: type) -> frozenset[str]:
    """The names of all fields, also while their types are not known yet."""
    return frozenset(
        name for base in cls.__mro__ for name in base.__dict__.get("declared_fields", ())
    )


_ATOMS = frozenset(
    (
        bool,
        bytes,
        datetime.date,
        datetime.datetime,
        datetime.time,
        datetime.timedelta,
        decimal.Decimal,
        float,
        int,
        str,
        type(None),
        uuid.UUID,
    )
)


def is_fixed(value: Any) -> bool:
    """Whether nothing in the value can change, so that it needs no copy.

    >>> is_fixed((1, "a")), is_fixed(([1], "a"))
    (True, False)
    """
    kind = type(value)
    if kind in _ATOMS:
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(is_fixed(part) for part in value)
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        return config.frozen and all(
            is_fixed(getattr(value, name)) for name in value.__struct_fields__
        )
    return isinstance(value, enum.Enum)


def copied(value: Any) -> Any:
    """A value that shares nothing changeable with the given one.

    About 0.1 us for each entry of dictionaries and lists; what is none of the usual is left to
    `copy.deepcopy`, and raises what that raises.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {
            name: part if type(part) in _ATOMS else copied(part) for name, part in value.items()
        }
    if kind is list:
        return [part if type(part) in _ATOMS else copied(part) for part in value]
    if is_fixed(value):
        return value
    return copy.deepcopy(value)


def is_same(one: Any, other: Any) -> bool | None:
    """Whether two values are equal; none if they cannot be compared."""
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # of the value's own class, or nested without end
        return None
