"""Actions that stop policies: `delete policy NAME`, `pause policy NAME`. [PO-10, PO-12]"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, NamedTuple

from rapport.core.errors import nearest_names
from rapport.policy.language.faults import Faults
from rapport.policy.language.tree import PolicyTree

_COMMAND = re.compile(r"(delete|pause)\s+policy\s+(\S.*)", re.IGNORECASE)
_QUOTES = "'\""


class StopCommand(NamedTuple):
    """What a phrase does to which policy."""

    what: Literal["delete", "pause"]
    policy: str


def stop_of(phrase: str) -> StopCommand | None:
    """The command that a phrase is; None for all others.

    >>> stop_of("Delete policy night-watch")
    StopCommand(what='delete', policy='night-watch')
    >>> stop_of("raise alarm") is None
    True
    """
    found = _COMMAND.fullmatch(" ".join(phrase.split()))
    if found is None:
        return None
    name = found[2].strip(_QUOTES)
    return StopCommand("delete" if found[1].lower() == "delete" else "pause", name)


def lint_commands(tree: PolicyTree, known: Collection[str], faults: Faults) -> None:
    """Warns of commands about policies that are not there. Stopping itself is allowed."""
    for action in tree.actions:
        stop = stop_of(action.phrase)
        if stop is None or stop.policy in known or stop.policy == tree.name:
            continue
        near = nearest_names(stop.policy, known, limit=1)
        hint = f"did you mean {near[0]!r}?" if near else "register that policy first"
        faults.add(
            "policy.unknown_policy",
            f"there is no policy named {stop.policy!r} to {stop.what}",
            action.place,
            hint=hint,
            severity="warning",
        )
