"""What somebody asks to be done about a policy: when it may be done, and what came of it. Pure.
[PO-9]
"""

from __future__ import annotations

import re

import msgspec

from rapport.core.errors import (
    Conflict,
    DuplicateName,
    InvalidInput,
    Problem,
    StaleVersion,
    UnknownName,
)
from rapport.policy.life.changes import ChangeKind
from rapport.policy.life.registry import PolicyEntry, PolicyRegistry

_NAME = re.compile(r"\w[\w-]{0,99}")


class ChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did. Nothing is changed when everything was so already."""

    changed: bool
    name: str
    what: ChangeKind
    version: str = ""
    after: int = 0
    """The position of `events` after which it holds."""
    problems: tuple[Problem, ...] = ()
    """Warnings and hints; of a file's policy that is broken, why."""


class CheckResult(msgspec.Struct, frozen=True):
    """What a policy would be: its version, empty when it has errors, and every problem."""

    version: str
    problems: tuple[Problem, ...]


def check_name(name: str) -> None:
    """Raises InvalidInput for what cannot name a policy."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:120]!r} cannot name a policy",
            code="policy.bad_name",
            hint="use letters, digits, _ and -, at most 100",
        )


def known_entry(registry: PolicyRegistry, name: str) -> PolicyEntry:
    """The policy; raises UnknownName with the nearest."""
    entry = registry.find(name)
    if entry is None:
        known = [each.name for each in registry.alive()]
        error = UnknownName("policy", name, known, code="policy.unknown")
        if name in registry.entries:
            error.hint = "it was deleted: its history tells when; register it to have it back"
        raise error
    return entry


def is_needed(
    registry: PolicyRegistry,
    what: ChangeKind,
    name: str,
    version: str,
    expects: str,
    *,
    is_failed: bool = False,
) -> bool:
    """Whether there is anything to do; raises UnknownName, DuplicateName, StaleVersion or Conflict
    when it may not be done. One that failed is begun anew by what would change nothing else.
    """
    if what == "registered":
        if registry.find(name) is not None:
            raise DuplicateName(
                f"there is a policy named {name!r}",
                code="policy.exists",
                hint="replace it, or take another name",
            )
        return True
    entry = known_entry(registry, name)
    if expects and entry.version != expects:
        message = f"{name!r} is at version {entry.version or 'none'}, not {expects[:40]!r}"
        raise StaleVersion(message, hint="look at it again, then ask again")
    if what in ("promoted", "dropped") and not entry.shadow_version:
        raise Conflict(
            f"nothing runs in the shadow of {name!r}",
            code="policy.no_shadow",
            hint="bring a version there first",
        )
    if what == "shadowed":
        _check_shadow(entry, version, is_failed=is_failed)
    if is_failed and what in ("resumed", "replaced"):
        return True
    return not _is_so(entry, what, version)


def _check_shadow(entry: PolicyEntry, version: str, *, is_failed: bool) -> None:
    if entry.state != "running" or is_failed:
        state = "failed" if is_failed else entry.state
        raise Conflict(
            f"{entry.name!r} is {state}: there is nothing to compare with",
            code="policy.not_running",
            hint="replace it instead, or let it run first",
        )
    if version == entry.version:
        raise Conflict(
            f"{entry.name!r} is this version already: there would be no difference",
            code="policy.same_version",
            hint="change the text first; blanks, comments and names of sections do not count",
        )


def _is_so(entry: PolicyEntry, what: ChangeKind, version: str) -> bool:
    match what:
        case "replaced":
            return entry.version == version and not entry.problems
        case "paused":
            return entry.is_paused
        case "resumed":
            return not entry.is_paused
        case "shadowed":
            return entry.shadow_version == version
        case _:
            return False
