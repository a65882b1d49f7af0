"""Every error Rapport raises; the code is API, the text is not.

RapportError
  InvalidInput
    PolicyError
    InterpretationError
    SiteError
    UnknownName
    NotAllowed
    NotAuthenticated
    TooLarge
    Unsupported
  Conflict
    LeaseExpired
    DuplicateName
    StaleVersion
    KeyReused
  Unavailable
    StoreUnavailable
    ChannelUnavailable
    SourceUnavailable
    TooFast
  Corrupt

HTTP status and exit codes are mapped once, in `web/app.py` and `cli/main.py`, from `status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Severity = Literal["error", "warning", "hint"]


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One fault with its location, as `rapport check --json` prints it; line and column count from
    1, 0 = unknown.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    severity: Severity = "error"
    code: str
    message: str
    hint: str = ""
    excerpt: str = ""

    def as_text(self) -> str:
        """For people: location, message, excerpt with caret, hint."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        lines = [f"{place}: {self.message}" if place else self.message]
        if self.excerpt:
            lines.append(self.excerpt)
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


def excerpt_with_caret(text: str, line: int, column: int) -> str:
    """The source line with a caret below the column; empty when the line does not exist.

    >>> print(excerpt_with_caret("a is insde b", 1, 6))
      a is insde b
           ^
    """
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ""
    shown = lines[line - 1].replace("\t", " ")
    return f"  {shown}\n  {' ' * max(column - 1, 0)}^"


class RapportError(Exception):
    """Root of all errors: a stable `code`, a sentence, and a hint what to do about it."""

    code = "rapport.error"
    status = 500

    def __init__(self, message: str, *, code: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def problems_found(self) -> tuple[Problem, ...]:
        """The error as a list of problems."""
        return (Problem(code=self.code, message=self.message, hint=self.hint),)


class InvalidInput(RapportError):
    """The caller must change something."""

    code = "input.invalid"
    status = 400


class _WithProblems(InvalidInput):
    """An input error with all faults at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        first = self.problems[0] if self.problems else None
        text = "\n".join(problem.as_text() for problem in self.problems)
        super().__init__(text, code=first.code if first else None)

    def problems_found(self) -> tuple[Problem, ...]:
        return self.problems


class PolicyError(_WithProblems):
    """A policy text that does not parse, check or plan; `problems` lists every fault."""

    code = "policy.invalid"


class InterpretationError(_WithProblems):
    """An interpretation that fails its checks; `problems` lists every fault."""

    code = "mediation.invalid"


class SiteError(_WithProblems):
    """A site directory that cannot be used; `problems` lists every fault in every file."""

    code = "site.invalid"


def nearest_names(name: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """The known names that look most like `name`, best first; empty when none is close."""
    from rapidfuzz import fuzz, process

    found = process.extract(name, list(known), scorer=fuzz.ratio, limit=limit, score_cutoff=55)
    return tuple(match for match, _score, _index in found)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The nearest known name as a hint, or another hint if none is close."""
    nearest = nearest_names(name, known, limit=1)
    return f"did you mean {nearest[0]!r}?" if nearest else otherwise


def suggest(name: str, known: Iterable[str], *, most: int = 8) -> str:
    """The nearest known name as a hint, or if none is close the known names, at most `most`.

    >>> suggest("latenes", ["name", "lateness"]), suggest("x", ["name", "lateness"])
    ("did you mean 'lateness'?", 'known: lateness, name')
    """
    names = sorted(known)
    return did_you_mean(name, names, f"known: {', '.join(names[:most])}" if names else "")


class UnknownName(InvalidInput):
    """An undeclared name; `nearest` holds the known names that look like it."""

    code = "name.unknown"
    status = 404

    def __init__(
        self,
        kind: str,
        name: str,
        known: Sequence[str] = (),
        *,
        code: str | None = None,
        hint: str = "",
    ) -> None:
        """`hint` is shown only if there are no known names."""
        self.kind, self.name = kind, name
        self.nearest = nearest_names(name, known)
        if self.nearest:
            hint = f"did you mean {self.nearest[0]!r}?"
        elif known:
            hint = f"known: {', '.join(sorted(known)[:8])}"
        super().__init__(f"there is no {kind} named {name!r}", hint=hint, code=code)


class NotAllowed(InvalidInput):
    """The caller is known but may not do this."""

    code = "access.not_allowed"
    status = 403


class NotAuthenticated(InvalidInput):
    """The caller presented no valid credentials."""

    code = "access.not_authenticated"
    status = 401


class TooLarge(InvalidInput):
    """The input is larger than the limit that the message names."""

    code = "input.too_large"
    status = 413


class Conflict(RapportError):
    """The state changed since the caller read it."""

    code = "state.conflict"
    status = 409


class LeaseExpired(Conflict):
    """The lease ran out before it was used."""

    code = "channel.lease_expired"


class DuplicateName(Conflict):
    """Something with this name exists already."""

    code = "name.duplicate"


class StaleVersion(Conflict):
    """Somebody else changed it first."""

    code = "state.stale_version"
    difference = ""
    """From what is in force now to what was sent, as `diff -u`, where both are texts."""

    def problems_found(self) -> tuple[Problem, ...]:
        [problem] = super().problems_found()
        return (msgspec.structs.replace(problem, excerpt=self.difference),)


class KeyReused(Conflict):
    """An idempotency key that was used before with another request."""

    code = "event.key_reused"
    status = 422


class Unavailable(RapportError):
    """Try again after `retry_after_seconds`."""

    code = "service.unavailable"
    status = 503

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: float = 1.0,
        code: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after_seconds = retry_after_seconds


class StoreUnavailable(Unavailable):
    """The store cannot read or write now (disk full, locked, closed)."""

    code = "store.unavailable"


class ChannelUnavailable(Unavailable):
    """The channel cannot accept or return events now."""

    code = "channel.unavailable"


class SourceUnavailable(Unavailable):
    """A pull source did not answer."""

    code = "source.unavailable"


class TooFast(Unavailable):
    """The caller exceeds its rate limit; the request was not processed."""

    code = "access.too_fast"
    status = 429


class Unsupported(InvalidInput):
    """This back end or this version lacks the feature; nothing was done."""

    code = "feature.unsupported"
    status = 422

    def __init__(self, feature: str, backend: str = "", *, hint: str = "") -> None:
        self.feature, self.backend = feature, backend
        where = f" by {backend}" if backend else ""
        super().__init__(f"{feature} is not supported{where}", hint=hint)


class Corrupt(RapportError):
    """Stored or received data is damaged; it is quarantined, never dropped silently."""

    code = "data.corrupt"
