"""Reading the keys of one TOML table: typed, with a problem at its place for each that is wrong.
[UX-2]"""

from __future__ import annotations

from collections.abc import Collection

from rapport.core.errors import InvalidInput, Problem, nearest_names
from rapport.core.times import parse_duration
from rapport.kernel.toml import Section


class Fields:
    """A section being read; what is wrong is added to `problems`, and reading goes on with a
    stand-in.

    A key that is not in `known` is a warning with the nearest known key.
    """

    def __init__(
        self, section: Section, problems: list[Problem], *, known: Collection[str]
    ) -> None:
        self.section, self.problems = section, problems
        for key in section.values:
            if key not in known:
                nearest = nearest_names(key, known, limit=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
                message = f"the key {key!r} has no meaning here"
                self.fault(key, "site.unknown_key", message, hint=hint, severity="warning")

    def fault(
        self, key: str, code: str, message: str, *, hint: str = "", severity: str = "error"
    ) -> None:
        """Notes a problem at `key`, or at the header when `key` is empty."""
        self.problems.append(self.section.problem(key, code, message, hint=hint, severity=severity))

    def text(self, key: str, default: str | None = None) -> str:
        """The text at `key`; without a default it must be there."""
        value = self.section.values.get(key, default)
        if value is None:
            self._missing(key, f'{key} = "..."')
            return ""
        if not isinstance(value, str):
            self._wrong(key, "text", f'{key} = "..."')
            return default or ""
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """The texts at `key`; one alone may stand without brackets."""
        value = self.section.values.get(key, default)
        if value is None:
            self._missing(key, f'{key} = ["..."]')
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self._wrong(key, "a list of texts", f'{key} = ["..."]')
        return default or ()

    def duration_ms(self, key: str, default: int) -> int:
        """The duration at `key`, written as `"5s"`."""
        value = self.section.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self._wrong(key, "a duration", f'{key} = "5s"')
            return default
        try:
            return parse_duration(value)
        except (InvalidInput, OverflowError):
            hint = "write a number and a unit, such as 500ms, 5s, 10 min, 2 hours"
            self.fault(key, "site.bad_duration", f"{value[:40]!r} is not a duration", hint=hint)
            return default

    def _missing(self, key: str, example: str) -> None:
        header = ".".join(self.section.path)
        message = f"[{header}] needs the key {key!r}"
        self.fault("", "site.missing_key", message, hint=f"add {example}")

    def _wrong(self, key: str, wanted: str, example: str) -> None:
        self.fault(key, "site.wrong_type", f"{key!r} must be {wanted}", hint=f"write {example}")
