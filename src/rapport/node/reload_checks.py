"""What of a site file that is read again cannot be taken over while a node runs, and what people
should be warned of. [UX-2, PO-9]

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from rapport.communication.config import CommunicationConfig
from rapport.core.errors import Problem
from rapport.kernel.toml import TomlFile
from rapport.mediation.source_bindings import SourceBinding

TAKEN_OVER = frozenset(
    {
        "concepts",
        "relationships",
        "groups",
        "containers",
        "functions",
        "tables",
        "sources",
        "interpretations",
        "policies",
        "actions",
        "contrary",
        "peers",
        "collectives",
        "adapters",
    }
)
"""Tables of a site file that a reload takes over; of `adapters` only new ones. A change anywhere
else needs a restart: the node opened doors, files and connections by it.
"""
PEOPLE = ("peers", "collectives", "actions", "adapters")


def needs_restart(
    before: TomlFile,
    after: TomlFile,
    *,
    people: bool,
    adapters: Collection[str],
    begun: Mapping[str, Any] = MappingProxyType({}),
) -> list[Problem]:
    """Every table that differs and cannot be taken over, at its place. `people`: whether they can
    be; `adapters` run already, and go on with the settings that they began with. `begun`: those
    settings of adapters that came by a reload, also by one that failed.
    """
    old, new = before.values, after.values
    names = [name for name in (*new, *old) if name not in TAKEN_OVER]
    if not people:
        names += PEOPLE
    problems = [
        _restart(after, (name,), f"[{name}]")
        for name in dict.fromkeys(names)
        if old.get(name) != new.get(name)
    ]
    told, tells = _table(old, "adapters"), _table(new, "adapters")
    problems += [
        _restart(after, ("adapters", name), f"[adapters.{name}]")
        for name in dict.fromkeys((*told, *tells))
        if people and told.get(name) != tells.get(name) and (name in told or name in adapters)
        # What a reload brought that then failed is no change when it is tried again.
        if name in told or name not in begun or begun[name] != tells[name]
    ]
    return problems


def gone_interpretations(
    before: Mapping[str, SourceBinding],
    after: Mapping[str, SourceBinding],
    gone: Collection[str],
    reading: Mapping[str, Collection[str]],
    told: Mapping[str, int],
) -> list[str]:
    """Warnings of interpretations that are `gone` and gave meaning to what policies read, or in
    which consumers were told something. `reading` are the streams of each policy that runs, `told`
    how many events were said in each interpretation.
    """
    warnings: list[str] = []
    for source, old in sorted(before.items()):
        name, new = old.interpretation, after.get(source)
        if name not in gone:
            continue
        streams = {f"{old.concept}.{attribute}" for attribute in old.attributes}
        policies = sorted(policy for policy, used in reading.items() if streams & set(used))
        if policies:
            now = "is gone, too" if new is None else "is read otherwise from now on"
            warnings.append(
                f"the interpretation {name!r} is gone, its source {source!r} {now}: "
                f"{', '.join(policies)} read {', '.join(sorted(streams))} by it"
            )
    warnings += [
        f"the interpretation {name!r} is gone: consumers were given {_events(told[name])} in it "
        "since the node started, and who asks for it from now on is refused"
        for name in sorted(told.keys() & gone)
        if told[name]
    ]
    return warnings


def actions_changed(before: CommunicationConfig, after: CommunicationConfig) -> list[str]:
    """The phrases about which something else is done."""
    phrases = {*before.actions, *after.actions}
    return sorted(one for one in phrases if before.actions.get(one) != after.actions.get(one))


def _restart(file: TomlFile, path: tuple[str, ...], what: str) -> Problem:
    return file.problem(
        path,
        "reload.needs_restart",
        f"needs a restart: {what} has changed",
        hint="start the node again, or take this change back; what is received meanwhile is kept",
    )


def _events(count: int) -> str:
    return "an event" if count == 1 else f"{count:,} events"


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name, {})
    return found if isinstance(found, dict) else {}
