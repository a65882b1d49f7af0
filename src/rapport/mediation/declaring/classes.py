"""Plain Python classes and dataclasses as types. [ME-1, ME-10]

    class UsWeather:
        station: str
        temperature: Annotated[float, Unit("degF")]
        humidity: Annotated[float, Unit("%")] | None

`int` is integer, `float` number, `list[X]` a list, `X | None` optional, a `NewType` a primitive of
its own, another class the type of its name; `dict` and `Any` are json.
"""

from __future__ import annotations

import inspect
import types as python_types
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NewType, Union, get_args, get_origin
from typing import get_type_hints as hints_of

import msgspec

from rapport.core.errors import InterpretationError, Problem
from rapport.kernel.config_fields import suggest
from rapport.mediation.concepts import unit_type
from rapport.mediation.declaring.type_forms import variant_of
from rapport.mediation.model.types import (
    Attribute,
    ComplexType,
    Kind,
    PrimitiveType,
    Type,
    TypeRef,
    innermost,
)
from rapport.units.catalogue import BY_NAME

_SCALARS: dict[Any, Kind] = {
    str: "text",
    float: "number",
    int: "integer",
    bool: "boolean",
    dict: "json",
    object: "json",
    Any: "json",
}
_LISTS = (list, tuple, Sequence)


class Unit(msgspec.Struct, frozen=True):
    """In which unit an attribute is: `Annotated[float, Unit("degF")]`. On a class, such as
    `Annotated[Money, Unit("USD")]`, the unit may be any name that conversions use, too.
    """

    name: str


class ClassReader:
    """Reads classes; collects `problems`, and the types that units and NewTypes bring along."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.from_units: dict[str, Type] = {}
        self.primitives: dict[str, Type] = {}
        self.met: dict[str, type] = {}
        """Classes that were named as types."""

    def all_types(self, classes: Sequence[type]) -> tuple[Type, ...]:
        """Types of units by name, then primitives, then the classes in order."""
        read = [self.complex_type(each) for each in classes]
        own = {each.name for each in read}
        units = (self.from_units[name] for name in sorted(self.from_units) if name not in own)
        return (*units, *self.primitives.values(), *read)

    def complex_type(self, given: type) -> ComplexType:
        """The class with its own attributes; those of its bases come by inheritance."""
        above = tuple(self._class(base) for base in given.__bases__ if is_record(base))
        hints = self._hints(given, given.__name__)
        attributes = []
        for name in inspect.get_annotations(given):
            hint = hints.get(name, Any)
            if get_origin(hint) is ClassVar or hint is ClassVar:
                continue
            reference, optional = self.reference(hint, f"{given.__name__}.{name}")
            attributes.append(Attribute(name, reference, optional))
        return ComplexType(given.__name__, tuple(attributes), above)

    def signature(self, function: Any) -> tuple[list[TypeRef], TypeRef]:
        """Types of the parameters and of what is returned; `json` where nothing is said."""
        place = getattr(function, "__qualname__", repr(function))
        hints = self._hints(function, place)
        found = [
            self.reference(hints[name], f"{place}({name})")[0] if name in hints else "json"
            for name in inspect.signature(function).parameters
        ]
        result = hints.get("return")
        return found, self.reference(result, place)[0] if result is not None else "json"

    def reference(self, hint: Any, place: str) -> tuple[TypeRef, bool]:
        """The type that an annotation means, and whether it may be missing."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            reference, optional = self.reference(arguments[0], place)
            for unit in (each for each in arguments[1:] if isinstance(each, Unit)):
                reference = self.in_unit(reference, unit.name, place)
            return reference, optional
        if origin in (Union, python_types.UnionType):
            return self._union(arguments, place)
        if origin in _LISTS:
            return self._list(hint, arguments, place), False
        return self._single(hint, origin, arguments, place), False

    def in_unit(self, reference: TypeRef, unit: str, place: str) -> TypeRef:
        """`number` in degF is `degF`, `Money` in USD is `Money in USD`."""
        inner = innermost(reference)
        if inner in ("number", "integer", "json") and unit in BY_NAME:
            found: Type = unit_type(unit)
        elif inner in self.met:
            found = variant_of(inner, unit)
        else:
            code = "unit.mismatch" if unit in BY_NAME else "unit.unknown"
            message = f"{place}: {inner} cannot be in {unit[:40]!r}"
            self.fault(code, message, suggest(unit, BY_NAME))
            return reference
        self.from_units[found.name] = found
        return reference.replace(inner, found.name)

    def fault(self, code: str, message: str, hint: str) -> None:
        """Notes a problem."""
        self.problems.append(Problem(code=code, message=message, hint=hint))

    def _union(self, arguments: tuple[Any, ...], place: str) -> tuple[TypeRef, bool]:
        rest = [each for each in arguments if each is not type(None)]
        if len(rest) != 1:
            return self._unsupported(" | ".join(map(_shown, arguments)), place), True
        return self.reference(rest[0], place)[0], len(rest) < len(arguments)

    def _list(self, hint: Any, arguments: tuple[Any, ...], place: str) -> TypeRef:
        elements = [each for each in arguments if each is not ...]
        if len(elements) != 1 or (get_origin(hint) is tuple and ... not in arguments):
            return self._unsupported(_shown(hint), place)
        reference, optional = self.reference(elements[0], place)
        return self._unsupported(_shown(hint), place) if optional else f"[{reference}]"

    def _single(self, hint: Any, origin: Any, arguments: tuple[Any, ...], place: str) -> TypeRef:
        if isinstance(hint, NewType):
            reference, _ = self.reference(hint.__supertype__, place)
            if reference in _SCALARS.values():
                primitive = PrimitiveType(hint.__name__, reference)  # type: ignore[arg-type]
                self.primitives[primitive.name] = primitive
                return primitive.name
        if origin is Literal and all(isinstance(each, str) for each in arguments):
            return "text"
        scalar = _SCALARS.get(origin or hint) if _is_hashable(hint) else None
        if scalar is not None:
            return scalar
        if isinstance(hint, type) and is_record(hint):
            return self._class(hint)
        return self._unsupported(_shown(hint), place)

    def _class(self, given: type) -> str:
        self.met[given.__name__] = given
        return given.__name__

    def _unsupported(self, shown: str, place: str) -> TypeRef:
        hint = "use str, float, int, bool, list[X], X | None, a NewType of these, or a class"
        self.fault("type.unsupported_annotation", f"{place}: {shown[:80]} is no type here", hint)
        return "json"

    def _hints(self, given: Any, place: str) -> dict[str, Any]:
        try:
            return hints_of(given, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            message = f"{place}: its annotations cannot be read: {error}"
            self.fault("type.unsupported_annotation", message, "names must be known in the module")
            return {}


def types_of_class(given: type) -> tuple[Type, ...]:
    """The type of one class and those that its units bring along; raises InterpretationError."""
    reader = ClassReader()
    found = reader.all_types([given])
    if reader.problems:
        raise InterpretationError(reader.problems)
    return found


def is_record(given: type) -> bool:
    """A class with attributes, its own or inherited ones."""
    return given.__module__ != "builtins" and any(
        inspect.get_annotations(each) for each in given.__mro__ if each.__module__ != "typing"
    )


def _shown(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)


def _is_hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True
