"""Reading one people's table of the site file: more kinds of values than `Fields` knows. [UX-2]"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rapport.core.errors import InvalidInput, Problem, nearest_names
from rapport.kernel.fields import Fields
from rapport.kernel.toml import Section


class PeopleFields(Fields):
    """A table being read. Here a key that means nothing is an error, not a warning: a misspelt
    `urgent` or `escalate_to` would show only on the night it matters.
    """

    def __init__(self, section: Section, problems: list[Problem], known: Collection[str]) -> None:
        super().__init__(section, problems, known=section.values)
        for key in section.values:
            if key not in known:
                message = f"the key {key!r} has no meaning here"
                self.fault(key, "site.unknown_key", message, hint=suggest(key, known))

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self.section.values.get(key, default)
        if isinstance(value, bool):
            return value
        self.fault(key, "site.wrong_type", f"{key!r} must be true or false")
        return default

    def number(self, key: str, default: int, *, low: int, high: int) -> int:
        """A whole number within bounds."""
        value = self.section.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self.fault(key, "site.wrong_type", f"{key!r} must be a whole number")
        elif not low <= value <= high:
            self.fault(key, "site.out_of_range", f"{key!r} must lie between {low} and {high}")
        else:
            return value
        return default

    def duration_of(self, key: str, default: int = 0) -> int:
        """A duration in ms that is longer than nothing."""
        duration = self.duration_ms(key, default)
        if duration == 0 and key in self.section.values and not self.has_fault(key):
            self.fault(key, "site.bad_duration", f"{key!r} must be longer than nothing")
        return duration

    def choice(self, key: str, choices: Collection[str], default: str) -> str:
        """One of the given words."""
        value = self.text(key, default)
        if value in choices:
            return value
        message = f"{key!r} cannot be {value[:40]!r}"
        self.fault(key, "site.unknown_choice", message, hint=suggest(value, choices))
        return default

    def is_empty(self, key: str) -> bool:
        """Whether the key is absent or an empty list; what is of a wrong type is neither."""
        return bool(self.section.values.get(key, []) == [])

    def place(self, key: str) -> str:
        """The key when it is there, else the table: where to point for something missing."""
        return key if key in self.section.values else ""

    def has_fault(self, key: str) -> bool:
        """Whether something was found wrong at this key."""
        at = self.section.problem(key, "", "")
        return any(
            (found.line, found.column) == (at.line, at.column) and found.severity == "error"
            for found in self.problems
        )

    def report(self, key: str, error: InvalidInput) -> None:
        """Remembers an error at a key."""
        self.fault(key, error.code, error.message, hint=error.hint)


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a hint, or all of them when none is near."""
    names = sorted(known)
    nearest = nearest_names(name, names, limit=1)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    return f"known: {', '.join(names[:8])}" if names else ""
