"""What is wrong with a node, for people: one line per fault, the worst first. [CN-4]

Faults of the machinery are conditions (`kernel/telemetry.py`); beside them stand readings that wait
in quarantine, silent sources, policies that do not run, and messages that reached nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from rapport.channel.channel import events_between
from rapport.communication.ledger import Question
from rapport.communication.ledger_rows import LedgerRow
from rapport.core.errors import InvalidInput
from rapport.node.things import silent_sources

if TYPE_CHECKING:
    from rapport.node.node import Node

TroubleKind = Literal["node", "source", "quarantine", "late", "policy", "delivery", "link", "table"]
_DAY_MS = 86_400_000
_MOST = 50
_LOOKED_AT = 200
_KINDS: dict[str, TroubleKind] = {
    "adapter": "delivery",
    "input": "delivery",
    "link": "link",
    "mqtt": "link",
    "table": "table",
    "policy.late": "late",
    "policy": "policy",
}
_ORDER: tuple[TroubleKind, ...] = (
    *("node", "delivery", "source", "policy", "link", "table", "late", "quarantine"),
)


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    kind: TroubleKind
    name: str
    """Of what it is about: a source, a policy, a person, a medium."""
    text: str
    hint: str = ""
    since: int = 0
    count: int = 0
    """How many readings or messages it is about; 0 where nothing is counted."""


async def troubles_of(node: Node) -> list[Trouble]:
    """Everything that is wrong now, bounded."""
    found = [*_conditions(node), *_silent(node), *_policies(node)]
    found += [*await _quarantined(node), *await _undelivered(node)]
    return sorted(found, key=lambda one: _ORDER.index(one.kind))[:_MOST]


def _conditions(node: Node) -> Iterator[Trouble]:
    for one in node.conditions.current():
        first, _, rest = one.name.partition(".")
        second, _, name = rest.partition(".")
        kind = _KINDS.get(f"{first}.{second}") or _KINDS.get(first, "node")
        text = name if kind == "late" else rest
        yield Trouble(kind=kind, name=text, text=one.reason, since=one.since)


def _silent(node: Node) -> Iterator[Trouble]:
    sources = node.things.sources
    for name, last in silent_sources(node.policy.ontology, sources, node.clock.now_ms()):
        period_s = node.policy.ontology.sources[name].period_ms / 1_000
        promise = f"it promises a reading every {period_s:g} s"
        text = f"{name} is silent: {promise}" if last else f"{name} was never heard: {promise}"
        yield Trouble(kind="source", name=name, text=text, since=last)


def _policies(node: Node) -> Iterator[Trouble]:
    for policy in node.policies.life.policies():
        if policy.problems and policy.state in ("broken", "failed"):
            problem = policy.problems[0]
            line = f", line {problem.line}" if problem.line else ""
            yield Trouble(
                kind="policy",
                name=policy.name,
                text=f"{policy.name} does not run: {problem.message}{line}",
                hint=problem.hint,
                since=policy.since,
            )


async def _quarantined(node: Node) -> list[Trouble]:
    quarantined = node.releasing.index
    await quarantined.refresh()
    newest = await _newest_rejections(node)
    found: list[Trouble] = []
    for (source, reason), count in quarantined.counts().most_common(_MOST):
        time, rejection = newest.get((source, reason), (0, RejectedReading()))
        found.append(
            Trouble(
                kind="quarantine",
                name=source,
                text=f"readings of {source} cannot be used: {rejection.message or reason}",
                hint=rejection.hint,
                since=time,
                count=count,
            )
        )
    return found


class RejectedReading(msgspec.Struct):
    """What an event in `quarantine` says of a reading."""

    source: str = ""
    reason: str = ""
    message: str = ""
    hint: str = ""


async def _newest_rejections(node: Node) -> dict[tuple[str, str], tuple[int, RejectedReading]]:
    """The newest rejection of each source and reason, among the last ones."""
    channel = node.channels.channel("quarantine")
    last = channel.last_position()
    found: dict[tuple[str, str], tuple[int, RejectedReading]] = {}
    for stored in await events_between(channel, max(last - _LOOKED_AT, 0) + 1, last):
        with suppress(InvalidInput):
            rejection: RejectedReading = stored.event.payload_as(RejectedReading)
            source = rejection.source or stored.event.source
            found[source, rejection.reason] = stored.received, rejection
    return found


async def _undelivered(node: Node) -> list[Trouble]:
    """Failed deliveries of the last day, one line per person and reason."""
    since = node.clock.now_ms() - _DAY_MS
    page = await node.ledger.find(Question(state="failed", since=since, limit=_LOOKED_AT))
    groups: dict[tuple[str, str], list[LedgerRow]] = {}
    for row in page.rows:
        groups.setdefault((row.peer, row.reason), []).append(row)
    return [
        Trouble(
            kind="delivery",
            name=peer,
            text=f"a message did not reach {peer or 'anybody'}" + (f": {reason}" if reason else ""),
            since=max(row.time for row in rows),
            count=len(rows),
        )
        for (peer, reason), rows in groups.items()
    ]
