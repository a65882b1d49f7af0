"""The versions of a policy as people look at them: who brought them, when, and what changed.
[PO-9]
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from rapport.core.errors import Problem
from rapport.policy.engine.counts import PolicyCounts
from rapport.policy.life.changes import WITH_TEXT, ChangeKind, RecordedChange
from rapport.policy.life.registry import PolicyEntry, PolicyState
from rapport.policy.life.shadow import ShadowTally


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """A policy in a list."""

    name: str
    state: PolicyState | Literal["failed"]
    version: str
    by: str
    since: int
    shadow: str = ""
    """The version in its shadow."""
    tally: ShadowTally | None = None
    counts: PolicyCounts = PolicyCounts()
    problems: tuple[Problem, ...] = ()
    """Why it is broken, or failed, or its shadow did, or that nobody watches."""
    on_spark: bool = False
    """It runs there; what it did is not counted here."""
    text: str = ""
    shadow_text: str = ""


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """A change in the history of a policy."""

    id: str
    time: int
    what: ChangeKind
    version: str
    by: str
    after: int
    """The position of `events` after which it holds."""
    cause: str = ""
    problems: tuple[Problem, ...] = ()
    text: str = ""
    diff: str = ""
    """Against the version before."""


def policy_view(
    entry: PolicyEntry,
    counts: Mapping[str, PolicyCounts],
    tallies: Mapping[str, ShadowTally],
    *,
    failed: Problem | None = None,
    shadow_failed: Problem | None = None,
    unwatched: Problem | None = None,
    on_spark: bool = False,
    whole: bool = False,
) -> PolicyView:
    """With its text when `whole`; `failed`: why it does not run although it should;
    `shadow_failed`: the same of the version in its shadow; `unwatched`: why that is not known of
    one on Spark.
    """
    told = [one for one in (failed, shadow_failed, unwatched) if one is not None]
    return PolicyView(
        name=entry.name,
        state="failed" if failed is not None else entry.state,
        version=entry.version,
        by=entry.by,
        since=entry.since,
        shadow=entry.shadow_version,
        tally=tallies.get(entry.name),
        counts=counts.get(entry.name, PolicyCounts()),
        problems=(*entry.problems, *told),
        on_spark=on_spark,
        text=entry.text if whole else "",
        shadow_text=entry.shadow_text if whole else "",
    )


def history_view(changes: Iterable[RecordedChange]) -> list[ChangeView]:
    """All changes of one policy, oldest first; each version with what it changed."""
    found: list[ChangeView] = []
    before, version = "", ""
    for kept in changes:
        changed = kept.changed
        diff = ""
        if changed.what in WITH_TEXT:
            diff = text_difference(before, changed.text, version, changed.version)
        if changed.what in WITH_TEXT and changed.what != "shadowed":
            before, version = changed.text, changed.version
        elif changed.what in ("rebuilt", "broken"):
            version = changed.version
        found.append(
            ChangeView(
                id=kept.id,
                time=kept.time,
                what=changed.what,
                version=changed.version or version,
                by=changed.by,
                after=changed.place.after,
                cause=changed.cause,
                problems=changed.problems,
                text=changed.text,
                diff=diff,
            )
        )
    return found


def text_of_version(changes: Iterable[RecordedChange], version: str) -> str:
    """The text that gave a version; empty when none did. A version that an ontology made anew has
    the text of the one before.
    """
    text = ""
    for kept in changes:
        changed = kept.changed
        if changed.what in WITH_TEXT and changed.version == version:
            return changed.text
        if changed.what in WITH_TEXT and changed.what != "shadowed":
            text = changed.text
        if changed.what == "rebuilt" and changed.version == version:
            return text
    return ""


def text_difference(before: str, after: str, old: str, new: str) -> str:
    """Lines taken out and put in, as `diff -u` shows them; empty when there are none."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), old or "nothing", new or "broken", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)
