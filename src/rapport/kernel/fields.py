"""Reading the keys of one TOML table: typed, with a problem at its place for each that is wrong.
[UX-2]

Every room that declares something in a site's files reads it with `Fields`, so the same mistake is
told in the same words everywhere; only the codes of a fault may differ (`FaultCodes`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, Problem, RapportError, Severity
from rapport.core.errors import suggest as suggest
from rapport.core.times import ENDLESS_DURATION, parse_duration
from rapport.kernel.toml import Section

_SHOWN = 40
"""Characters of a wrong value that a message repeats."""


class FaultCodes(msgspec.Struct, frozen=True, kw_only=True):
    """The codes under which a kind of table reports its faults; codes are part of the interface."""

    unknown_key: str = "site.unknown_key"
    missing_key: str = "site.missing_key"
    wrong_type: str = "site.wrong_type"
    unknown_choice: str = "site.unknown_choice"
    out_of_range: str = "site.out_of_range"
    bad_duration: str = "site.bad_duration"
    endless_duration: str = "site.bad_duration"


SITE = FaultCodes()


class Fields:
    """A section whose keys are asked for one by one; what is wrong is added to `problems`, and
    reading goes on with a stand-in, so that all faults are found at once.

    Args:
        known: The keys that mean something here; None when the keys are names of the site's own.
        strict: A key that is not known is an error, not a warning: for tables where a misspelt key
            would show only on the night it matters.
        codes: Where other codes than those of `site.` are promised.
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
        """The key is there, well-formed or not."""
        return key in self.section.values

    def is_empty(self, key: str) -> bool:
        """Whether the key is absent or an empty list; what is of a wrong type is neither."""
        return bool(self.section.values.get(key, []) == [])

    # --- values of a kind ---

    def text(self, key: str, default: str | None = None, *, example: str = '"..."') -> str:
        """The text at `key`; without a default it must be there."""
        value = self._given(key, example, needed=default is None)
        if isinstance(value, str):
            return value
        if value is not None:
            self.wrong(key, "text", f"{key} = {example}")
        return default or ""

    def filled_text(self, key: str, default: str | None = None, *, example: str = '"..."') -> str:
        """The text at `key`, which is not empty when it is there."""
        if self.section.values.get(key) == "":
            self.wrong(key, "text that is not empty", f"{key} = {example}")
            return default or ""
        return self.text(key, default, example=example)

    def texts(
        self, key: str, default: tuple[str, ...] | None = None, *, example: str = '["..."]'
    ) -> tuple[str, ...]:
        """The texts at `key`; one alone may stand without brackets."""
        value = self._given(key, example, needed=default is None)
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
        value = self._given(key, example, needed=True)
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
        """The duration at `key`, written as `"5s"`; with a `least` of 1 it may not be nothing."""
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

    # --- tables within the table ---

    def table(
        self, key: str, known: Collection[str] | None, example: str, *, needed: bool = False
    ) -> Fields | None:
        """The table at `key`, read in the same manner; None when it is absent or no table."""
        value = self._given(key, example, needed=needed)
        if isinstance(value, dict):
            return self._below(self.section.section(key), known)
        if value is not None:
            self.wrong(key, "a table", f"{key} = {example}")
        return None

    def entries(self, key: str, known: Collection[str], example: str) -> tuple[Fields, ...]:
        """The tables in the list at `key`; faults of those that stand inline are told at `key`."""
        value = self.section.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            self.wrong(key, "a list of tables", f"{key} = {example}")
            return ()
        file, path = self.section.file, (*self.section.path, key)
        return tuple(
            self._below(Section(file, (*path, f"[{number}]"), entry), known)
            for number, entry in enumerate(value)
        )

    # --- faults ---

    def fault(
        self, key: str, code: str, message: str, *, hint: str = "", severity: Severity = "error"
    ) -> None:
        """Notes a problem at `key`, or at the header when `key` is empty or absent."""
        self.problems.append(self.section.problem(key, code, message, hint=hint, severity=severity))

    def report(self, key: str, error: RapportError) -> None:
        """Notes an error that was raised while the value of `key` was looked at."""
        self.fault(key, error.code, error.message, hint=error.hint)

    def wrong(self, key: str, wanted: str, example: str) -> None:
        """Notes that `key` is not of the wanted kind; `example` is a whole line that would be."""
        message = f"{key!r} must be {wanted}"
        self.fault(key, self._codes.wrong_type, message, hint=f"write {example}")

    def _check_keys(self, known: Collection[str]) -> None:
        severity: Severity = "error" if self._strict else "warning"
        for key in self.section.values:
            if key not in known:
                message, hint = f"the key {key!r} has no meaning here", suggest(key, known, most=20)
                self.fault(key, self._codes.unknown_key, message, hint=hint, severity=severity)

    def _given(self, key: str, example: str, *, needed: bool) -> Any:
        """The value as it stands, None when it is absent: a fault if it is needed."""
        if needed and not self.has(key):
            message = f"[{'.'.join(self.section.path)}] needs the key {key!r}"
            self.fault("", self._codes.missing_key, message, hint=f"add {key} = {example}")
        return self.section.values.get(key)

    def _below(self, section: Section, known: Collection[str] | None) -> Fields:
        return Fields(section, self.problems, known=known, strict=self._strict, codes=self._codes)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256
