"""Reads declarations in a safe subset of YAML: no tags, no aliases, bounded size and depth. [ME-10]

Unquoted scalars follow YAML 1.2: only `true`, `false`, `null` and numbers are not text. So the
country `NO` and `1:30` are texts.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped, unused-ignore]

from rapport.mediation.declarations.placed_values import (
    MAX_FILE_DEPTH,
    FileContent,
    PlacedFile,
    ValuePath,
    unreadable_file,
)

MAX_YAML_NODES = 100_000
"""Maximum keys and values; a megabyte of `[[],[],...]` would take a gigabyte of memory."""

_INTEGER = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_HARMLESS_TAGS = (None, "!", "tag:yaml.org,2002:str")


class _YamlError(Exception):
    """Ends reading, with location, code, message and hint."""

    def __init__(self, mark: Any, code: str, message: str, hint: str) -> None:
        self.place = (mark.line + 1, mark.column + 1)
        self.code, self.message, self.hint = code, message, hint


class _OpenContainer(msgspec.Struct):
    """A mapping or list that is being filled."""

    value: Any
    path: ValuePath
    key: str | None = None

    def next_path(self) -> ValuePath:
        """The path of the next value."""
        inner = f"[{len(self.value)}]" if isinstance(self.value, list) else (self.key or "")
        return (*self.path, inner)


def read_yaml_file(name: str, raw: bytes) -> FileContent:
    """Reads the file, or returns the problem with its location."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message = "the file is not UTF-8 text"
        return unreadable_file(name, "", (line, 0), "yaml.not_utf8", message, "save it as UTF-8")
    try:
        values, places = _YamlBuilder(text).build()
    except _YamlError as stop:
        return unreadable_file(name, text, stop.place, stop.code, stop.message, stop.hint)
    except yaml.YAMLError as error:
        return _syntax(name, text, error)
    return FileContent(PlacedFile(name, text, values, places))


class _YamlBuilder:
    """Builds values from parser events, iteratively."""

    def __init__(self, text: str) -> None:
        self._loader = yaml.SafeLoader(text)
        self._open: list[_OpenContainer] = []
        self._places: dict[ValuePath, tuple[int, int]] = {}
        self._nodes = 0
        self._documents = 0
        self._root: Any = {}

    def build(self) -> tuple[dict[str, Any], dict[ValuePath, tuple[int, int]]]:
        """All values with their locations; raises _YamlError or yaml.YAMLError."""
        try:
            while self._loader.check_event():
                self._take(self._loader.get_event())
        finally:
            self._loader.dispose()
        return (self._root if self._root is not None else {}), self._places

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.AliasEvent):
            hint = "write the values again where they are needed"
            raise _YamlError(event.start_mark, "yaml.alias", "aliases (*name) are not read", hint)
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                message, hint = "the file holds more than one document", "remove the line ---"
                raise _YamlError(event.start_mark, "yaml.syntax", message, hint)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._begin(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._open.pop()

    def _begin(self, event: Any) -> None:
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        if len(self._open) >= MAX_FILE_DEPTH:
            message = f"tables and lists are nested more than {MAX_FILE_DEPTH} levels deep"
            raise _YamlError(event.start_mark, "yaml.too_deep", message, "write it flatter")
        path = self._open[-1].next_path() if self._open else ()
        self._put(event, value)
        self._open.append(_OpenContainer(value, path))

    def _scalar(self, event: Any) -> None:
        inside = self._open[-1] if self._open else None
        if inside is not None and isinstance(inside.value, dict) and inside.key is None:
            self._count(event)
            self._begin_key(event, inside)
            return
        self._put(event, _plain(event) if event.implicit[0] else event.value)

    def _begin_key(self, event: Any, inside: _OpenContainer) -> None:
        if event.value in inside.value:
            message = f"the key {event.value[:40]!r} occurs twice"
            raise _YamlError(event.start_mark, "yaml.duplicate_key", message, "remove one of them")
        inside.key = event.value
        self._mark(inside.next_path(), event)

    def _put(self, event: Any, value: Any) -> None:
        self._count(event)
        if event.tag not in _HARMLESS_TAGS:
            message = f"the tag {str(event.tag)[:60]!r} is not read"
            raise _YamlError(
                event.start_mark, "yaml.tag", message, "write plain values without !tags"
            )
        if not self._open:
            if not isinstance(value, dict) and value is not None:
                message = "the file is no table of keys"
                raise _YamlError(
                    event.start_mark, "yaml.syntax", message, "begin with interpretations:"
                )
            self._root = value
            return
        inside = self._open[-1]
        if isinstance(inside.value, list):
            self._mark(inside.next_path(), event)
            inside.value.append(value)
        elif inside.key is None:
            message = "a key is a table or a list"
            raise _YamlError(event.start_mark, "yaml.syntax", message, "keys are texts")
        else:
            inside.value[inside.key], inside.key = value, None

    def _mark(self, path: ValuePath, event: Any) -> None:
        mark = event.start_mark
        self._places.setdefault(path, (mark.line + 1, mark.column + 1))

    def _count(self, event: Any) -> None:
        self._nodes += 1
        if self._nodes > MAX_YAML_NODES:
            message = f"the file has over {MAX_YAML_NODES} keys and values"
            raise _YamlError(
                event.start_mark, "yaml.too_large", message, "split it into several files"
            )


def _plain(event: Any) -> Any:
    """The value of an unquoted scalar."""
    text: str = event.value
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _syntax(name: str, text: str, error: Exception) -> FileContent:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
    message = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    hint = "tables are indented by spaces; texts with odd characters stand in quotes"
    return unreadable_file(name, text, place, "yaml.syntax", str(message), hint)
