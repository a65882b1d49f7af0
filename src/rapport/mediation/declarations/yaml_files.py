"""Reads declarations in a safe subset of YAML: no tags, no aliases, bounded size and depth. [ME-10]

Unquoted scalars follow YAML 1.2: only `true`, `false`, `null` and numbers are not text. So the
country `NO` and `1:30` are texts.
"""

from __future__ import annotations

import re
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from rapport.kernel.toml import TomlFile
from rapport.mediation.declarations.placed_values import (
    MAX_FILE_DEPTH,
    FileContent,
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
    return FileContent(TomlFile(name, text, values, places))


class _YamlBuilder:
    """Builds values from parser events; the depth is bounded, so it descends by recursion."""

    def __init__(self, text: str) -> None:
        self._loader = yaml.SafeLoader(text)
        self._places: dict[ValuePath, tuple[int, int]] = {}
        self._nodes = 0

    def build(self) -> tuple[dict[str, Any], dict[ValuePath, tuple[int, int]]]:
        """All values with their locations; raises _YamlError or yaml.YAMLError."""
        try:
            self._loader.get_event()  # the stream
            values = self._document() if self._loader.check_event(yaml.DocumentStartEvent) else None
            if self._loader.check_event(yaml.DocumentStartEvent):
                mark = self._loader.get_event().start_mark
                message, hint = "the file holds more than one document", "remove the line ---"
                raise _YamlError(mark, "yaml.syntax", message, hint)
        finally:
            self._loader.dispose()
        return (values if values is not None else {}), self._places

    def _document(self) -> Any:
        self._loader.get_event()
        first = self._loader.peek_event()
        is_list = isinstance(first, yaml.SequenceStartEvent) and first.tag in _HARMLESS_TAGS
        values = None if is_list else self._value(())
        if is_list or not (isinstance(values, dict) or values is None):
            message, hint = "the file is no table of keys", "begin with interpretations:"
            raise _YamlError(first.start_mark, "yaml.syntax", message, hint)
        self._loader.get_event()
        return values

    def _value(self, path: ValuePath) -> Any:
        event = self._next_event()
        if event.tag not in _HARMLESS_TAGS:
            message = f"the tag {str(event.tag)[:60]!r} is not read"
            hint = "write plain values without !tags"
            raise _YamlError(event.start_mark, "yaml.tag", message, hint)
        if isinstance(event, yaml.ScalarEvent):
            return _plain(event) if event.implicit[0] else event.value
        if len(path) >= MAX_FILE_DEPTH:
            message = f"tables and lists are nested more than {MAX_FILE_DEPTH} levels deep"
            raise _YamlError(event.start_mark, "yaml.too_deep", message, "write it flatter")
        found = (
            self._list(path) if isinstance(event, yaml.SequenceStartEvent) else self._table(path)
        )
        self._loader.get_event()  # its end
        return found

    def _list(self, path: ValuePath) -> list[Any]:
        found: list[Any] = []
        while not self._is_next(yaml.SequenceEndEvent):
            below = (*path, f"[{len(found)}]")
            self._mark(below, self._loader.peek_event())
            found.append(self._value(below))
        return found

    def _table(self, path: ValuePath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._is_next(yaml.MappingEndEvent):
            key = self._next_event()
            if not isinstance(key, yaml.ScalarEvent):
                message = "a key is a table or a list"
                raise _YamlError(key.start_mark, "yaml.syntax", message, "keys are texts")
            if key.value in found:
                message = f"the key {key.value[:40]!r} occurs twice"
                raise _YamlError(
                    key.start_mark, "yaml.duplicate_key", message, "remove one of them"
                )
            below = (*path, key.value)
            self._mark(below, key)
            found[key.value] = self._value(below)
        return found

    def _next_event(self) -> Any:
        """The event of a key or a value; aliases and too many of them are refused."""
        event = self._loader.get_event()
        self._nodes += 1
        if isinstance(event, yaml.AliasEvent):
            hint = "write the values again where they are needed"
            raise _YamlError(event.start_mark, "yaml.alias", "aliases (*name) are not read", hint)
        if self._nodes > MAX_YAML_NODES:
            message = f"the file has over {MAX_YAML_NODES} keys and values"
            hint = "split it into several files"
            raise _YamlError(event.start_mark, "yaml.too_large", message, hint)
        return event

    def _is_next(self, kind: type[Any]) -> bool:
        return bool(self._loader.check_event(kind))

    def _mark(self, path: ValuePath, event: Any) -> None:
        self._places[path] = (event.start_mark.line + 1, event.start_mark.column + 1)


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
