"""Typed reading of the keys of one TOML table, with a problem at the position of each wrong key.
[UX-2]

All packages read a site's files with `Fields`, so that the same mistake is reported in the same
words everywhere; only the error codes may differ (`FaultCodes`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from rapport.core.errors import InvalidInput, Problem, RapportError, Severity
from rapport.core.errors import suggest as suggest
from rapport.core.times import ENDLESS_DURATION, parse_duration, zone_named
from rapport.kernel.toml import Section

S = TypeVar("S", bound=msgspec.Struct)
_SHOWN = 40
"""Characters of a wrong value in an error message."""


class FaultCodes(msgspec.Struct, frozen=True, kw_only=True):
    """The error codes of a kind of table; codes are part of the interface."""

    unknown_key: str = "site.unknown_key"
    missing_key: str = "site.missing_key"
    wrong_type: str = "site.wrong_type"
    unknown_choice: str = "site.unknown_choice"
    out_of_range: str = "site.out_of_range"
    bad_duration: str = "site.bad_duration"
    endless_duration: str = "site.bad_duration"


SITE = FaultCodes()


class Fields:
    """Reads the keys of a section one by one. Faults are added to `problems` and reading continues
    with a default, so that all faults are reported at once.

    Args:
        known: The allowed keys; None if the site chooses the keys.
        strict: An unknown key is an error instead of a warning, for tables where a misspelt key
            would have late consequences.
        codes: Error codes other than those of `site.`.
    """

    def __init__(
        self,
        section: Section,
        problems: list[Problem],
        *,
        known: Collection[str] | None = None,
        strict: bool = False,
        codes: FaultCodes = SITE,
    ) -> None:
        self.section, self.problems = section, problems
        self._strict, self._codes = strict, codes
        if known is not None:
            self._check_keys(known)

    def has(self, key: str) -> bool:
        """Whether the key is present, valid or not."""
        return key in self.section.values

    def is_empty(self, key: str) -> bool:
        """Whether the key is absent or an empty list."""
        return bool(self.section.values.get(key, []) == [])

    # --- values of a kind ---

    def text(self, key: str, default: str | None = None, *, example: str = '"..."') -> str:
        """The text at `key`, which is required without a default."""
        value = self._value(key, example, needed=default is None)
        if isinstance(value, str):
            return value
        if value is not None:
            self.wrong(key, "text", f"{key} = {example}")
        return default or ""

    def filled_text(self, key: str, default: str | None = None, *, example: str = '"..."') -> str:
        """The text at `key`, which must not be empty."""
        if self.section.values.get(key) == "":
            self.wrong(key, "text that is not empty", f"{key} = {example}")
            return default or ""
        return self.text(key, default, example=example)

    def texts(
        self, key: str, default: tuple[str, ...] | None = None, *, example: str = '["..."]'
    ) -> tuple[str, ...]:
        """The texts at `key`; a single one needs no brackets."""
        value = self._value(key, example, needed=default is None)
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        if value is not None:
            self.wrong(key, "a list of texts", f"{key} = {example}")
        return default or ()

    def names(self, key: str, *, example: str) -> tuple[str, ...]:
        """The name of a field, or the names down to a nested one as a list; none is empty or longer
        than 256 characters."""
        value = self._value(key, example, needed=True)
        names = [value] if isinstance(value, str) else value
        if isinstance(names, list) and names and all(_is_name(name) for name in names):
            return tuple(names)
        if value is not None:
            wanted = "a field's name, or a list of names for a nested one"
            self.wrong(key, wanted, f"{key} = {example}")
        return ()

    def choice(self, key: str, choices: Collection[str], default: str) -> str:
        """One of the given words."""
        value = self.section.values.get(key)
        if not isinstance(value, str):
            return self.text(key, default)
        if value in choices:
            return value
        message = f"{key!r} cannot be {value[:_SHOWN]!r}"
        self.fault(key, self._codes.unknown_choice, message, hint=suggest(value, choices))
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self.section.values.get(key, default)
        if isinstance(value, bool):
            return value
        self.wrong(key, "true or false", f"{key} = true")
        return default

    def number(self, key: str, default: int, *, low: int, high: int) -> int:
        """A whole number within bounds."""
        value = self.section.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self.wrong(key, "a whole number", f"{key} = {default}")
        elif not low <= value <= high:
            message = f"{key!r} must lie between {low} and {high}"
            self.fault(key, self._codes.out_of_range, message, hint=f"such as {key} = {default}")
        else:
            return value
        return default

    def duration_ms(self, key: str, default: int, *, least: int = 0) -> int:
        """The duration at `key`, written as `"5s"`, at least `least`."""
        value = self.section.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.wrong(key, "a duration", f'{key} = "5s"')
            return default
        code, hint = self._codes.bad_duration, f'write {key} = "5s"'
        try:
            duration_ms = parse_duration(value)
        except InvalidInput as error:
            message = f"{value[:_SHOWN]!r} is not a duration"
            if error.code == ENDLESS_DURATION:
                code, message = self._codes.endless_duration, f"{key!r} must be a shorter duration"
            else:
                hint = "write a number and a unit, such as 500ms, 5s, 10 min, 2 hours"
        else:
            if duration_ms >= least:
                return duration_ms
            message = f"{key!r} must be longer than nothing"
        self.fault(key, code, message, hint=hint)
        return default

    # --- settings ---

    def settings(self, default: S, **given: Any) -> S:
        """Reads a struct: each field at the key of its name, by its type and the bounds of its
        `Meta`, `NAME_ms` as the duration `NAME`. Absent ones are as in `default`; fields that are
        `given` are not read.
        """
        described = inspect.type_info(type(default))
        assert isinstance(described, inspect.StructType)
        read = {
            field.name: self._setting(field.name, field.type, getattr(default, field.name))
            for field in described.fields
            if field.name not in given
        }
        return type(default)(**read, **given)

    def _setting(self, name: str, kind: inspect.Type, default: Any) -> Any:
        match kind:
            case inspect.BoolType():
                return self.flag(name, default)
            case inspect.LiteralType():
                return self.choice(name, [str(value) for value in kind.values], default)
            case inspect.IntType() if name.endswith("_ms"):
                return self.duration_ms(name.removesuffix("_ms"), default, least=kind.ge or 0)
            case inspect.IntType(ge=int() as low, le=int() as high):
                return self.number(name, default, low=low, high=high)
            case inspect.StrType():
                read = self.filled_text if kind.min_length else self.text
                return read(name, default)
            case inspect.VarTupleType():
                return self.texts(name, default)
            case _:
                raise TypeError(f"the field {name} cannot be read from a table")

    # --- tables within the table ---

    def table(
        self, key: str, known: Collection[str] | None, example: str, *, needed: bool = False
    ) -> Fields | None:
        """The sub-table at `key`; None if absent or no table."""
        value = self._value(key, example, needed=needed)
        if isinstance(value, dict):
            return self._subtable(self.section.section(key), known)
        if value is not None:
            self.wrong(key, "a table", f"{key} = {example}")
        return None

    def entries(self, key: str, known: Collection[str], example: str) -> tuple[Fields, ...]:
        """The tables in the list at `key`; faults of inline tables are reported at `key`."""
        value = self.section.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            self.wrong(key, "a list of tables", f"{key} = {example}")
            return ()
        file, path = self.section.file, (*self.section.path, key)
        return tuple(
            self._subtable(Section(file, (*path, f"[{number}]"), entry), known)
            for number, entry in enumerate(value)
        )

    # --- faults ---

    def fault(
        self, key: str, code: str, message: str, *, hint: str = "", severity: Severity = "error"
    ) -> None:
        """Adds a problem at `key`, or at the header if `key` is empty or absent."""
        self.problems.append(self.section.problem(key, code, message, hint=hint, severity=severity))

    def report(self, key: str, error: RapportError) -> None:
        self.fault(key, error.code, error.message, hint=error.hint)

    def wrong(self, key: str, wanted: str, example: str) -> None:
        """Adds a type error at `key`; `example` is a correct line."""
        message = f"{key!r} must be {wanted}"
        self.fault(key, self._codes.wrong_type, message, hint=f"write {example}")

    def _check_keys(self, known: Collection[str]) -> None:
        severity: Severity = "error" if self._strict else "warning"
        for key in self.section.values:
            if key not in known:
                message, hint = f"the key {key!r} has no meaning here", suggest(key, known, most=20)
                self.fault(key, self._codes.unknown_key, message, hint=hint, severity=severity)

    def _value(self, key: str, example: str, *, needed: bool) -> Any:
        """The unchecked value; None if absent, which is a fault if it is needed."""
        if needed and not self.has(key):
            message = f"[{'.'.join(self.section.path)}] needs the key {key!r}"
            self.fault("", self._codes.missing_key, message, hint=f"add {key} = {example}")
        return self.section.values.get(key)

    def _subtable(self, section: Section, known: Collection[str] | None) -> Fields:
        return Fields(section, self.problems, known=known, strict=self._strict, codes=self._codes)


def keys_of(kind: type[msgspec.Struct], *, but: Collection[str] = ()) -> tuple[str, ...]:
    """The keys that `Fields.settings` reads, without those of some fields."""
    names = (name for name in kind.__struct_fields__ if name not in but)
    return tuple(name.removesuffix("_ms") for name in names)


def named_tables(
    section: Section, problems: list[Problem], known: Collection[str]
) -> list[tuple[str, Fields]]:
    """The sub-tables by names that the site chooses; anything else in the section is a fault."""
    Fields(section, problems, known=dict(section.sections()), strict=True)
    return [
        (name, Fields(table, problems, known=known, strict=True))
        for name, table in section.sections()
    ]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256


def read_zone(fields: Fields) -> str:
    """The time zone of local times without an offset (`zone`), empty if not declared."""
    zone = fields.filled_text("zone", "", example='"Europe/Berlin"')
    try:
        if zone:
            zone_named(zone)
    except InvalidInput as error:
        fields.report("zone", error)
        return ""
    return zone
