"""Interpretations in Python: the five annotations of table 4.1 of the source. [ME-10]

    @context("us")
    @maps_to("ProductStatusEvent")
    class CustomerProductStatusEvent:
        pos: Annotated[LatLonPosition, Unit("latlonPos")]
        price: Annotated[Money, Unit("USD")]

    @context("us")
    class CurrencyFunctions:
        @staticmethod
        @conv_function(source_unit="EUR", target_unit="USD")
        def to_dollars(value: Money) -> Money: ...

    us = interpretation_of(module, "us")

`@transform_with` names a function for a whole class. Units need no rule: `complete` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, Literal, TypeVar

import msgspec

from rapport.core.errors import InterpretationError
from rapport.mediation.declaring.classes import ClassReader, Unit, is_record
from rapport.mediation.declaring.interpretation_form import parent_of
from rapport.mediation.declaring.mapping_forms import turned_round
from rapport.mediation.model.conversions import Call, Conversion
from rapport.mediation.model.finding import Scalar
from rapport.mediation.model.interpretation import (
    CreateAttribute,
    DropAttribute,
    Interpretation,
    RenameAttribute,
    Rule,
    Shape,
)
from rapport.mediation.model.interpretation import Mapping as TypeMapping
from rapport.mediation.model.patterns import quoted_type
from rapport.mediation.model.types import TypeRef

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


class _MapsTo(msgspec.Struct, frozen=True):
    target: str
    direction: Way
    shape: tuple[Shape, ...]


class _Marks(msgspec.Struct):
    """What the annotations said about one class or function."""

    context: str = ""
    mappings: list[_MapsTo] = []
    transforms: list[Callable[..., Any] | str] = []
    units: tuple[str, str] | None = None
    """Of a conversion function; texts may be empty."""
    name: str = ""


def context(name: str) -> Callable[[_Any], _Any]:
    """Labels a class or function as part of the interpretation `name`."""

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
    """Events of the class become events of the type `name` of root, and back unless `direction`
    says one way; `rename` has the class's name first, `drop=["*"]` drops what has no place on the
    other side. A package before the name is left out.
    """
    shape: list[Shape] = [DropAttribute(each) for each in drop]
    shape += [RenameAttribute(old, new) for old, new in (rename or {}).items()]
    shape += [CreateAttribute(new, kind, value) for new, (kind, value) in (create or {}).items()]
    told = _MapsTo(name.rpartition(".")[2], direction, tuple(shape))

    def mark(given: type[_Any]) -> type[_Any]:
        _own_marks(given).mappings.append(told)
        return given

    return mark


def transform_with(function: Callable[..., Any] | str) -> Callable[[type[_Any]], type[_Any]]:
    """The whole class is converted by this function (or `package.module:function`), whatever units
    its attributes have. A function that returns the class is for the way out.
    """

    def mark(given: type[_Any]) -> type[_Any]:
        _own_marks(given).transforms.append(function)
        return given

    return mark


def conv_function(
    source_unit: str = "", target_unit: str = "", *, name: str = ""
) -> Callable[[_Function], _Function]:
    """Labels a function as a conversion from values in one unit to values in another; it is used
    wherever exactly these meet. Static methods and functions of a module can be labelled.
    """

    def mark(function: _Function) -> _Function:
        marks = _own_marks(function)
        marks.units, marks.name = (source_unit, target_unit), name
        return function

    return mark


def interpretation_of(
    declared: ModuleType | Iterable[Any], name: str, parent: str | None = None
) -> Interpretation:
    """The interpretation that annotations say; raises InterpretationError with every fault.

    Args:
        declared: A module, of which everything labelled with the context counts, and without a
            label what the module itself defines: classes that those use, and conversions. Or
            classes and functions, of which those labelled otherwise are left out.
        parent: Left out, the name says it: `us/weather` is below `us`.
    """
    collected = _Collected(declared, name)
    found = collected.interpretation(parent_of(name) if parent is None else parent)
    if collected.reader.problems:
        raise InterpretationError(collected.reader.problems)
    return found


class _Collected:
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
        """All of it."""
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
        for told in _marks_of(given).mappings:
            first = TypeMapping(given.__name__, told.target, "in", told.shape)
            back = turned_round(first)
            if told.direction != "out":
                yield first
            if told.direction != "in" and back is not None:
                yield back
            elif told.direction != "in":
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
        if isinstance(function, str):  # its types follow from where the rule counts
            return Conversion(address.rpartition(":")[2], (), (), Call(address))
        return self._conversion(_bare(function))


def _used_by(labelled: Sequence[Any], plain: Sequence[Any]) -> list[Any]:
    """Classes without a label that labelled ones have as attributes or bases, at any depth."""
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
    """Marks of a class are its own: those of its bases do not count for it."""
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
