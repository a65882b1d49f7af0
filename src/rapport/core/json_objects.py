"""Strict decoding of JSON objects from outside; an unknown key gets the nearest known name as a
hint. [UX-2, CO-1]

Every endpoint uses it, so that a misspelt key is rejected everywhere in the same words instead of
being ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec
from msgspec import inspect

from rapport.core.errors import InvalidInput, suggest

T = TypeVar("T")

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?\Z", re.DOTALL)
_STEPS = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")
_SHOWN = 60
"""Characters of an unknown key in an error message."""
_MOST_KNOWN = 20


class ObjectDecoder(Generic[T]):
    """Decodes one kind of JSON body; raises InvalidInput with `code` for anything else.

    Args:
        fault: The beginning of the error message, such as "this is no routing rule".
        hint: Describes a correct body; an unknown key gets the nearest known key instead.
        is_secret: Error messages repeat no values of the body (passwords).
    """

    def __init__(
        self, kind: type[T], *, fault: str, code: str, hint: str = "", is_secret: bool = False
    ) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._shape = inspect.type_info(kind)
        self._fault, self._code, self._hint, self._is_secret = fault, code, hint, is_secret
        lenient = [
            cls.__name__
            for cls in _structs(self._shape)
            if not cls.__struct_config__.forbid_unknown_fields
        ]
        if lenient:
            raise TypeError(f"{', '.join(lenient)} ignore unknown keys: forbid_unknown_fields")

    def decode(self, body: bytes | str) -> T:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise self._error(str(error)) from None

    def _error(self, reason: str) -> InvalidInput:
        found = _UNKNOWN.match(reason)
        if found is None:
            message = self._fault if self._is_secret else f"{self._fault}: {reason}"
            return InvalidInput(message, code=self._code, hint=self._hint)
        key, path = found[1], found[2] or ""
        place = f" in {path.lstrip('.')}" if path else ""
        message = f"{self._fault}: the key {key[:_SHOWN]!r}{place} has no meaning here"
        known = set(_keys_at(self._shape, path))
        return InvalidInput(message, code=self._code, hint=suggest(key, known, most=_MOST_KNOWN))


def is_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists are nested deeper than so many levels; iterative."""
    level = [value]
    for _ in range(levels):
        level = [
            below
            for each in level
            if isinstance(each, (dict, list))
            for below in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _structs(shape: inspect.Type) -> Iterator[type[msgspec.Struct]]:
    """All struct classes within a shape."""
    if isinstance(shape, inspect.StructType):
        yield shape.cls
        for field in shape.fields:
            yield from _structs(field.type)
    for part in _parts(shape):
        yield from _structs(part)


def _keys_at(shape: inspect.Type, path: str) -> Iterator[str]:
    """The keys allowed at a path such as `.wishes.escalate[0]`."""
    shapes = [shape]
    for step in _STEPS.finditer(path):
        shapes = [below for one in shapes for below in _below(one, step[1])]
    for one in shapes:
        for each in _alternatives(one):
            if isinstance(each, inspect.StructType):
                yield from (field.encode_name for field in each.fields)


def _below(shape: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    for one in _alternatives(shape):
        if isinstance(one, inspect.StructType):
            yield from (field.type for field in one.fields if field.encode_name == name)
        elif name is None:
            yield from _parts(one)


def _alternatives(shape: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(shape, inspect.UnionType):
        yield from shape.types
    else:
        yield shape


def _parts(shape: inspect.Type) -> tuple[inspect.Type, ...]:
    """The types that a shape consists of, except the fields of structs."""
    match shape:
        case inspect.UnionType():
            return tuple(shape.types)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            return (shape.item_type,)
        case inspect.TupleType():
            return tuple(shape.item_types)
        case inspect.DictType():
            return (shape.value_type,)
        case _:
            return ()
