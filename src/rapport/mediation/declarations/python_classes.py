"""Interpretations in Python: classes as types, and the five annotations of table 4.1. [ME-1, ME-10]

    @context("us")
    @maps_to("ProductStatusEvent")
    class CustomerProductStatusEvent:
        pos: Annotated[LatLonPosition, Unit("latlonPos")]
        price: Annotated[Money, Unit("USD")]
        weight: Annotated[float, Unit("lb")] | None

    @context("us")
    class CurrencyFunctions:
        @staticmethod
        @conv_function(source_unit="EUR", target_unit="USD")
        def to_dollars(value: Money) -> Money: ...

    us = interpretation_of(module, "us")

`int` is integer, `float` number, `list[X]` a list, `X | None` optional, a `NewType` a primitive
type, another class the type of its name; `dict` and `Any` are json. `@transform_with` names a
function for a whole class. Units need no rule: `complete_declarations` infers them.
"""

from __future__ import annotations

import inspect
import types as python_types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Annotated, Any, ClassVar, Literal, NewType, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

import msgspec

from rapport.core.errors import InterpretationError, Problem
from rapport.kernel.config_fields import suggest
from rapport.mediation.concepts import unit_type
from rapport.mediation.conversion.conversions import Call, Conversion
from rapport.mediation.conversion.lookups import Scalar
from rapport.mediation.declarations.type_tables import unit_variant
from rapport.mediation.declarations.typed_tables import parent_of, reversed_mapping
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    DropAttribute,
    Interpretation,
    RenameAttribute,
    Rule,
    ShapeStep,
    TypeMapping,
)
from rapport.mediation.patterns import quoted_type
from rapport.mediation.types import (
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
    """The unit of an attribute: `Annotated[float, Unit("degF")]`. On a class, such as
    `Annotated[Money, Unit("USD")]`, any name that conversions use.
    """

    name: str


class ClassReader:
    """Reads classes; collects `problems` and the types that units and NewTypes imply."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.from_units: dict[str, Type] = {}
        self.primitives: dict[str, Type] = {}
        self.met: dict[str, type] = {}
        """Classes used as types."""

    def all_types(self, classes: Sequence[type]) -> tuple[Type, ...]:
        """Unit types by name, then primitives, then the classes in order."""
        read = [self.complex_type(each) for each in classes]
        own = {each.name for each in read}
        units = (self.from_units[name] for name in sorted(self.from_units) if name not in own)
        return (*units, *self.primitives.values(), *read)

    def complex_type(self, given: type) -> ComplexType:
        """The class with its own attributes; bases become super-types."""
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
        """The types of parameters and result; `json` without an annotation."""
        place = getattr(function, "__qualname__", repr(function))
        hints = self._hints(function, place)
        found = [
            self.reference(hints[name], f"{place}({name})")[0] if name in hints else "json"
            for name in inspect.signature(function).parameters
        ]
        result = hints.get("return")
        return found, self.reference(result, place)[0] if result is not None else "json"

    def reference(self, hint: Any, place: str) -> tuple[TypeRef, bool]:
        """The type of an annotation, and whether it is optional."""
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
            found = unit_variant(inner, unit)
        else:
            code = "unit.mismatch" if unit in BY_NAME else "unit.unknown"
            message = f"{place}: {inner} cannot be in {unit[:40]!r}"
            self.fault(code, message, suggest(unit, BY_NAME))
            return reference
        self.from_units[found.name] = found
        return reference.replace(inner, found.name)

    def fault(self, code: str, message: str, hint: str) -> None:
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
    """The type of one class and the types its units imply; raises InterpretationError."""
    reader = ClassReader()
    found = reader.all_types([given])
    if reader.problems:
        raise InterpretationError(reader.problems)
    return found


def is_record(given: type) -> bool:
    """Whether the class has attributes, its own or inherited."""
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


__all__ = [
    "Unit",
    "context",
    "conv_function",
    "interpretation_of",
    "maps_to",
    "transform_with",
]

_Any = TypeVar("_Any")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARKS = "__rapport_marks__"
Way = Literal["both", "in", "out"]


class _MappingMark(msgspec.Struct, frozen=True):
    target: str
    direction: Way
    shape: tuple[ShapeStep, ...]


class _Marks(msgspec.Struct):
    """The annotations of one class or function."""

    context: str = ""
    mappings: list[_MappingMark] = []
    transforms: list[Callable[..., Any] | str] = []
    units: tuple[str, str] | None = None
    """Source and target unit of a conversion function; may be empty."""
    name: str = ""


def context(name: str) -> Callable[[_Any], _Any]:
    """Marks a class or function as part of the interpretation `name`."""

    def mark(given: _Any) -> _Any:
        _own_marks(given).context = name
        return given

    return mark


def maps_to(
    name: str,
    *,
    direction: Way = "both",
    rename: Mapping[str, str] | None = None,
    drop: Sequence[str] = (),
    create: Mapping[str, tuple[TypeRef, Scalar]] | None = None,
) -> Callable[[type[_Any]], type[_Any]]:
    """Maps events of the class to the canonical type `name` and back, or in one `direction`.
    `rename` maps names of the class; `drop=["*"]` drops attributes that the other side lacks. A
    package prefix of the name is ignored.
    """
    shape: list[ShapeStep] = [DropAttribute(each) for each in drop]
    shape += [RenameAttribute(old, new) for old, new in (rename or {}).items()]
    shape += [CreateAttribute(new, kind, value) for new, (kind, value) in (create or {}).items()]
    mark_ = _MappingMark(name.rpartition(".")[2], direction, tuple(shape))

    def mark(given: type[_Any]) -> type[_Any]:
        _own_marks(given).mappings.append(mark_)
        return given

    return mark


def transform_with(function: Callable[..., Any] | str) -> Callable[[type[_Any]], type[_Any]]:
    """Converts the whole class by this function (or `package.module:function`), whatever its
    units. A function that returns the class is for the outgoing direction.
    """

    def mark(given: type[_Any]) -> type[_Any]:
        _own_marks(given).transforms.append(function)
        return given

    return mark


def conv_function(
    source_unit: str = "", target_unit: str = "", *, name: str = ""
) -> Callable[[_Function], _Function]:
    """Marks a function as a conversion between two units, used wherever exactly these meet.
    Static methods and module functions can be marked.
    """

    def mark(function: _Function) -> _Function:
        marks = _own_marks(function)
        marks.units, marks.name = (source_unit, target_unit), name
        return function

    return mark


def interpretation_of(
    declared: ModuleType | Iterable[Any], name: str, parent: str | None = None
) -> Interpretation:
    """Builds the interpretation from annotations; raises InterpretationError with every fault.
    `declared`: a module, of which everything marked with the context is used, and of the
    unmarked definitions the classes that these use and conversions; or classes and functions,
    without those of other contexts. `parent`: by default from the name, `us/weather` is below
    `us`.
    """
    collected = _ModuleReader(declared, name)
    found = collected.interpretation(parent_of(name) if parent is None else parent)
    if collected.reader.problems:
        raise InterpretationError(collected.reader.problems)
    return found


class _ModuleReader:
    """The classes and functions of one interpretation."""

    def __init__(self, declared: ModuleType | Iterable[Any], name: str) -> None:
        self.name, self.reader = name, ClassReader()
        given = [*(vars(declared).values() if isinstance(declared, ModuleType) else declared)]
        given = [each for each in given if isinstance(each, (type, FunctionType))]
        labelled = [each for each in given if _marks_of(each).context == name]
        plain = [each for each in given if not _marks_of(each).context]
        if isinstance(declared, ModuleType):
            plain = [each for each in plain if each.__module__ == declared.__name__]
            plain = [*_used_by(labelled, plain), *filter(_is_conversion, plain)]
        chosen = dict.fromkeys([*labelled, *plain])
        self.members = [each for each in dict.fromkeys(given) if each in chosen]

    def interpretation(self, parent: str) -> Interpretation:
        classes = [each for each in self.members if isinstance(each, type) and is_record(each)]
        conversions = {each.name: each for each in self._conversions()}
        rules: list[Rule] = []
        for each in classes:
            rules += self._transforms(each, conversions)
        types = self.reader.all_types(classes)
        return Interpretation(
            name=self.name,
            parent=parent,
            types=types,
            mappings=tuple(mapping for each in classes for mapping in self._mappings(each)),
            rules=tuple(rules),
            conversions=tuple(conversions.values()),
        )

    def _mappings(self, given: type) -> Iterator[TypeMapping]:
        for mark_ in _marks_of(given).mappings:
            first = TypeMapping(given.__name__, mark_.target, "in", mark_.shape)
            back = reversed_mapping(first)
            if mark_.direction != "out":
                yield first
            if mark_.direction != "in" and back is not None:
                yield back
            elif mark_.direction != "in":
                message = f"{first} cannot be turned round"
                hint = 'renaming, creating and drop=["*"] can be; else say direction="in"'
                self.reader.fault("mapping.one_way", message, hint)

    def _conversions(self) -> Iterator[Conversion]:
        for each in self.members:
            inner = vars(each).values() if isinstance(each, type) else (each,)
            for one in inner:
                function = one.__func__ if isinstance(one, staticmethod) else one
                if _is_conversion(function):
                    yield self._conversion(function)

    def _conversion(self, function: Callable[..., Any]) -> Conversion:
        marks = _marks_of(function)
        taken, given = self.reader.signature(function)
        source, target = marks.units or ("", "")
        place = function.__qualname__
        if source and len(taken) == 1:
            taken = [self.reader.in_unit(taken[0], source, place)]
        if target:
            given = self.reader.in_unit(given, target, place)
        name = marks.name or function.__name__
        return Conversion(name, tuple(taken), (given,), Call(_address(function)))

    def _transforms(self, given: type, known: dict[str, Conversion]) -> Iterator[Rule]:
        for function in _marks_of(given).transforms:
            conversion = self._named(function, known)
            known[conversion.name] = conversion
            pattern = given.__name__
            if conversion.results == (pattern,) and len(conversion.arguments) == 1:
                pattern = conversion.arguments[0]
            yield Rule(quoted_type(pattern), conversion.name)

    def _named(
        self, function: Callable[..., Any] | str, known: Mapping[str, Conversion]
    ) -> Conversion:
        address = function if isinstance(function, str) else _address(_bare(function))
        for each in known.values():
            if isinstance(each.how, Call) and each.how.function == address:
                return each
        if isinstance(function, str):  # its types are inferred from the rule's paths
            return Conversion(address.rpartition(":")[2], (), (), Call(address))
        return self._conversion(_bare(function))


def _used_by(labelled: Sequence[Any], plain: Sequence[Any]) -> list[Any]:
    """Unmarked classes that marked ones use as attributes or bases, transitively."""
    reader = ClassReader()
    waiting: list[Any] = [each for each in labelled if isinstance(each, type) and is_record(each)]
    known: set[Any] = set(waiting)
    found: list[Any] = []
    while waiting:
        reader.complex_type(waiting.pop())
        for each in plain:
            if reader.met.get(getattr(each, "__name__", "")) is each and each not in known:
                known.add(each)
                found.append(each)
                waiting.append(each)
    return found


def _own_marks(given: Any) -> _Marks:
    """Annotations of bases do not apply to a class."""
    target = _bare(given)
    marks = vars(target).get(_MARKS)
    if marks is None:
        marks = _Marks()
        setattr(target, _MARKS, marks)
    return marks  # type: ignore[no-any-return]


def _marks_of(given: Any) -> _Marks:
    found = vars(given).get(_MARKS) if hasattr(given, "__dict__") else None
    return found if isinstance(found, _Marks) else _Marks()


def _is_conversion(given: Any) -> bool:
    return isinstance(given, FunctionType) and _marks_of(given).units is not None


def _bare(given: Any) -> Any:
    return given.__func__ if isinstance(given, staticmethod) else given


def _address(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__qualname__}"
