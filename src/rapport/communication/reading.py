"""Reading one table of the site file: typed values out, every fault gathered with its place.
[UX-2]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rapport.core.errors import InvalidInput, Problem, nearest_names
from rapport.core.times import parse_duration
from rapport.kernel.toml import Section


class TableReader:
    """One table: takes values key by key and remembers what was wrong; `finish` reports unknown
    keys.
    """

    def __init__(self, section: Section, problems: list[Problem]) -> None:
        self.section, self.problems = section, problems
        self._known: list[str] = []

    def text(self, key: str, default: str = "") -> str:
        """A text, or the default when it is absent or no text."""
        return str(self._value(key, str, "text", default))

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        return bool(self._value(key, bool, "true or false", default))

    def number(self, key: str, default: int, *, low: int, high: int) -> int:
        """A whole number within bounds."""
        value = self._value(key, int, "a whole number", default)
        if low <= value <= high:
            return int(value)
        self.fault(key, "site.out_of_range", f"{key} must lie between {low} and {high}")
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        values = self._value(key, list, "a list of texts", [])
        if all(isinstance(value, str) for value in values):
            return tuple(values)
        self.fault(key, "site.bad_type", f"{key} must be a list of texts")
        return ()

    def duration(self, key: str) -> int:
        """A duration in ms; 0 when absent."""
        text = self.text(key)
        if not text:
            return 0
        try:
            duration = parse_duration(text)
        except InvalidInput as error:
            self.report(key, error)
            return 0
        if duration == 0:
            self.fault(key, "time.bad_duration", f"{key} must be longer than nothing")
        return duration

    def choice(self, key: str, choices: Collection[str], default: str) -> str:
        """One of the given words."""
        value = self.text(key, default)
        if value in choices:
            return value
        self.fault(
            key,
            "site.unknown_choice",
            f"{key} cannot be {value!r}",
            hint=suggest(value, choices),
        )
        return default

    def need(self, key: str, code: str, message: str, *, hint: str = "") -> bool:
        """Whether the key is there; a fault when it is not."""
        if key in self.section.values:
            return True
        self.fault("", code, message, hint=hint)
        return False

    def fault(
        self, key: str, code: str, message: str, *, hint: str = "", severity: str = "error"
    ) -> None:
        """Remembers a fault at a key (at the table when the key is empty)."""
        self.problems.append(self.section.problem(key, code, message, hint=hint, severity=severity))

    def report(self, key: str, error: InvalidInput) -> None:
        """Remembers an error at a key."""
        self.fault(key, error.code, error.message, hint=error.hint)

    def finish(self) -> None:
        """Every key that nobody asked for is a fault: a misspelt one would silently do nothing."""
        for key in self.section.values:
            if key not in self._known:
                self.fault(
                    key,
                    "site.unknown_key",
                    f"{key!r} means nothing here",
                    hint=suggest(key, self._known),
                )

    def _value(self, key: str, kind: type, shown: str, default: Any) -> Any:
        self._known.append(key)
        value = self.section.values.get(key, default)
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if fits:
            return value
        self.fault(key, "site.bad_type", f"{key} must be {shown}")
        return default


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a hint, or all of them when none is near."""
    names = sorted(known)
    nearest = nearest_names(name, names, limit=1)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    return f"known: {', '.join(names[:8])}" if names else ""
