"""Rules 15 to 17: tables of groupers, their recipients, and their use. [EN-3, EN-7]"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rapport.ensemble.trace import IP, Kind, TraceEvent
from rapport_lab.ensemble.rules.message_rules import was_asked_for
from rapport_lab.ensemble.rules.trace_index import Breach, TraceIndex, version_of

_Page = tuple[str, str, str]
"""The grouper's node, the group, and the component that stands for a page of its table."""


def partial_publish(index: TraceIndex) -> Iterator[Breach]:
    """Rule 15: a grouper publishes table by table; each message is of one group, and a group's
    table does not name a node twice.
    """
    groups: dict[tuple[str, str], TraceEvent] = {}
    for _position, event in index.of_kind(Kind.TABLE_PUBLISHED):
        first = groups.setdefault((event.node, event.component), event)
        if not event.detail or first.detail != event.detail:
            yield Breach(15, "a part of a grouper's knowledge is of two groups", (first, event))
        if len({name for name, _zero in event.entries}) < len(event.entries):
            yield Breach(15, "a table names a node twice", (event,))
        if not index.facts(event.node).grouper:
            yield Breach(15, "a node that is no grouper published a table", (event,))


def publish_to_groups(index: TraceIndex) -> Iterator[Breach]:
    """Rule 16: a table goes to members of its group only, and only on IP. Of a table with pages,
    all pages go to the members that any of them names; each page to its own members first.
    """
    listed: dict[tuple[str, str], tuple[float, set[str]]] = {}
    for _position, event in index.of_kind(Kind.TABLE_PUBLISHED):
        time_ms, names = listed.get((event.node, event.detail), (event.time_ms, set()))
        if time_ms != event.time_ms:
            names = set()
        names.update(index.name_of(name) for name, _zero in event.entries)
        listed[event.node, event.detail] = (event.time_ms, names)
        if event.medium != IP:
            yield Breach(16, "a table was published on a medium without addresses", (event,))
        elif index.peer(event) not in names:
            yield Breach(16, "a table was sent to a node that is not in it", (event,))


def group_join(index: TraceIndex) -> Iterator[Breach]:
    """Rule 17: a node's peers are what the last tables of its groups say, one for each group and
    page; knowledge goes to them, to groupers, and to who pulled it.
    """
    applied: defaultdict[str, dict[_Page, TraceEvent]] = defaultdict(dict)
    published = _published(index)
    kinds = (Kind.TABLE_APPLIED, Kind.KNOWLEDGE_SENT, Kind.PART_SENT, Kind.STOPPED)
    for position, event in index.of_kind(*kinds):
        tables = applied[event.node]
        if event.kind is Kind.STOPPED:
            tables.clear()
        elif event.kind is Kind.TABLE_APPLIED:
            page = (index.peer(event), event.detail, event.component)
            if index.is_recorded(page[0]):
                yield from _wrongly_applied(event, tables.get(page), published.get(page))
            tables[page] = event
        elif not _is_to_a_peer(index, position, tables):
            yield Breach(17, "knowledge was sent to a node outside the groups", (event,))


def _published(index: TraceIndex) -> dict[_Page, dict[int, TraceEvent]]:
    found: defaultdict[_Page, dict[int, TraceEvent]] = defaultdict(dict)
    for _position, event in index.of_kind(Kind.TABLE_PUBLISHED):
        found[event.node, event.detail, event.component][event.version] = event
    return found


def _wrongly_applied(
    event: TraceEvent, last: TraceEvent | None, published: dict[int, TraceEvent] | None
) -> Iterator[Breach]:
    source = (published or {}).get(event.version)
    if source is None:
        yield Breach(17, "a table was applied that no grouper published", (event,))
    elif set(source.entries) != set(event.entries):
        yield Breach(17, "a table was applied otherwise than it was published", (source, event))
    if last is not None and last.version > event.version:
        yield Breach(17, "an older table took the place of a newer one", (last, event))


def _is_to_a_peer(index: TraceIndex, position: int, tables: dict[_Page, TraceEvent]) -> bool:
    event = index.events[position]
    peer, facts = index.peer(event), index.facts(event.node)
    if event.medium != IP or not facts.groups or facts.grouper or index.facts(peer).grouper:
        return True
    if peer not in index.system.nodes:
        return True  # perhaps a grouper
    if _is_answer(index, position) or was_asked_for(index, position):
        return True
    return any(
        index.name_of(name) == peer for table in tables.values() for name, _zero in table.entries
    )


def _is_answer(index: TraceIndex, position: int) -> bool:
    event = index.events[position]
    put = index.before(Kind.PASSED_ON, version_of(event), position)
    if put is None:
        return False
    return index.events[put].detail == "answer" and index.events[put].time_ms == event.time_ms
