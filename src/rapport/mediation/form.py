"""Reading one table of a declaration key by key, noting every fault with its place. [ME-7, UX-2]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rapport.core.errors import InvalidInput, Problem, nearest_names
from rapport.core.times import parse_duration
from rapport.kernel.toml import Section
from rapport.mediation.interpretation import Path


class Form:
    """A section whose keys are asked for one by one; faults go to `problems` and reading goes on.

    Methods return an empty value after a fault, so that all faults are found at once.
    """

    def __init__(self, section: Section, known: Sequence[str], problems: list[Problem]) -> None:
        self.section, self.problems = section, problems
        for key in section.values:
            if key not in known:
                nearest = nearest_names(key, known, 1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
                self.fault(key, "interpretation.unknown_key", f"there is no key {key!r} here", hint)

    def fault(self, key: str, code: str, message: str, hint: str = "") -> None:
        """Notes a fault at `key`."""
        self.problems.append(self.section.problem(key, code, message, hint=hint))

    def fault_of(self, key: str, error: InvalidInput) -> None:
        """Notes an error raised while checking the value of `key`."""
        self.fault(key, error.code, error.message, error.hint)

    def has(self, key: str) -> bool:
        """The key is there, well-formed or not."""
        return key in self.section.values

    def text(self, key: str, *, example: str = "", optional: bool = False) -> str:
        """A text that is not empty."""
        value = self._value(key, example, optional)
        if value is None:
            return ""
        if not isinstance(value, str) or not value:
            self._wrong(key, "text", example)
            return ""
        return value

    def path(self, key: str, *, example: str) -> Path:
        """A field's name, or the names down to a nested one as a list."""
        value = self._value(key, example, False)
        if value is None:
            return ()
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or not all(_is_name(name) for name in names):
            self._wrong(key, "a field's name, or a list of names for a nested one", example)
            return ()
        return tuple(names)

    def texts(self, key: str, *, example: str, optional: bool = False) -> tuple[str, ...]:
        """A text or a list of texts."""
        value = self._value(key, example, optional)
        if value is None:
            return ()
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            self._wrong(key, "text or a list of texts", example)
            return ()
        return tuple(texts)

    def duration_ms(self, key: str, default: int) -> int:
        """A duration as text, at least 1 ms."""
        if not self.has(key):
            return default
        try:
            return max(parse_duration(self.text(key, example="500ms")), 1)
        except InvalidInput as error:
            self.fault_of(key, error)
        except OverflowError:
            self._wrong(key, "a shorter duration", "500ms")
        return default

    def table(self, key: str, known: Sequence[str], example: str, *, optional: bool) -> Form | None:
        """The table below `key`, as a form; None when it is absent or no table."""
        value = self._value(key, example, optional)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._wrong(key, "a table", example)
            return None
        return Form(self.section.section(key), known, self.problems)

    def _value(self, key: str, example: str, optional: bool) -> Any:
        if key in self.section.values:
            return self.section.values[key]
        if not optional:
            name = ".".join((*self.section.path, key))
            hint = f"write {key} = {example}" if example else ""
            self.fault("", "interpretation.missing_key", f"{name} is missing", hint)
        return None

    def _wrong(self, key: str, wanted: str, example: str) -> None:
        hint = f"write {key} = {example}" if example else ""
        self.fault(key, "interpretation.bad_value", f"{key} must be {wanted}", hint)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256
