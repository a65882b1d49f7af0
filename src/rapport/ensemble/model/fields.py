"""The knowledge fields of roles and components: their names, types and first values. [EN-1]"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from rapport.core.errors import InvalidInput, UnknownName
from rapport.ensemble.model.copying import copied, is_fixed

T = TypeVar("T")


class _LocalMark:
    """Marks a field that stays on its node."""


_LOCAL = _LocalMark()
Local = Annotated[T, _LOCAL]
"""A field that is not published: a sensor, a connection, a secret. Never copied."""

RESERVED = frozenset(("created_ms", "id", "now_ms"))
"""What every component and replica has beside its fields."""
MISSING = dataclasses.MISSING


class Field(typing.NamedTuple):
    """One field of a role or component."""

    name: str
    type: Any
    is_local: bool
    default: Any
    """MISSING: it has to be given; a dataclasses.Field: as that says."""

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
    """Nobody declared it; offers the nearest."""
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
        said = ", ".join(f"{owner}: {kind}" for kind, owner in types.items())
        raise InvalidInput(
            f"{cls.__name__}: its roles disagree about the field {field.name!r} ({said})",
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
