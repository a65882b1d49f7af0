"""Routing rules: additional receivers of a message by its type, subtype, receiver and sender.
[CO-6, UX-2]

All matching rules apply. Rules with a property of higher priority come first (type, subtype,
receiver, sender), equal ones by id, so that the same rules give the same receivers in the same
order. Rules are found by their properties: a message costs at most twenty look-ups, with ten rules
or with a hundred thousand. Rules of the site file are not stored; others are durable and in force
when the call returns, on other engines with the same records within a second.

```toml
[[routing]]
type = "TASK"                 # empty or absent = any; at least one of the four is set
sender = "peer:ana"
to = ["collective:watchers"]  # peers, collectives, components
```
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.logged_records import LoggedRecords
from rapport.core.errors import Conflict, DuplicateName, InvalidInput, Problem
from rapport.core.event import Event, content_id
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import Clock
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.tasks import run_blocking
from rapport.kernel.toml import Section, TomlFile
from rapport.store.base import Delete, Put, RecordStore

LONGEST_NAME = 200
"""Characters of a rule's id, type, subtype and of each name in it."""
MOST_RECIPIENTS = 1_000
"""Of one rule; more people are a collective."""
CHANGED = "rapport.routing.changed"
SOURCE = "routing"
TABLE = "communication.routing"
_LOOK_EVERY_NS = 1_000_000_000
_KEYS = ("id", "type", "subtype", "receiver", "sender", "to")
_People = tuple[Identifier | None, Identifier | None]
_PLACE = {"routing.no_recipient": "to", "routing.too_many": "to"}


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages with these properties also go `to` these receivers; empty matches any."""

    id: str = ""
    type: str = ""
    subtype: str = ""
    receiver: Identifier | None = None
    sender: Identifier | None = None
    to: tuple[Identifier, ...] = ()

    def properties(self) -> tuple[bool, bool, bool, bool]:
        """Which properties are set, that of the highest priority first."""
        return bool(self.type), bool(self.subtype), bool(self.receiver), bool(self.sender)


class RoutingTable:
    """The rules in force. Changes and look-ups may come from different threads; a look-up costs the
    same for ten rules and for a hundred thousand.
    """

    def __init__(self, rules: Iterable[RoutingRule] = ()) -> None:
        self._guard = threading.Lock()
        self._rules: dict[str, RoutingRule] = {}
        self._groups: dict[tuple[str, str], dict[_People, _Bundle]] = {}
        """By type and subtype, then by receiver and sender; empty and None for any."""
        for rule in rules:
            self.add(rule)

    def __len__(self) -> int:
        return len(self._rules)

    def get(self, rule_id: str) -> RoutingRule | None:
        """The rule of that id; None when there is none."""
        return self._rules.get(rule_id)

    def rules(self) -> list[RoutingRule]:
        """Every rule, in the order in which they apply."""
        with self._guard:
            found = list(self._rules.values())
        return sorted(found, key=_rank)

    def add(self, rule: RoutingRule) -> str:
        """Puts a rule in force and returns its id. A rule without an id is named by its properties,
        so that adding it again changes nothing.

        Raises InvalidInput for an invalid rule, DuplicateName when another rule has its id.
        """
        rule = with_id(rule)
        with self._guard:
            known = self._rules.get(rule.id)
            if known is not None and known != rule:
                raise DuplicateName(
                    f"another routing rule has the id {rule.id!r}",
                    code="routing.id_taken",
                    hint="remove it first, or leave the id out",
                )
            if known is None:
                self._rules[rule.id] = rule
                insort(self._bundle(rule).rules, (rule.id, rule), key=_id)
        return rule.id

    def remove(self, rule_id: str) -> RoutingRule | None:
        """Takes a rule out of force and returns it; None when there is none of that id."""
        with self._guard:
            rule = self._rules.pop(rule_id, None)
            if rule is not None:
                rules, kind = self._bundle(rule).rules, (rule.type, rule.subtype)
                del rules[bisect_left(rules, rule.id, key=_id)]
                if not rules:
                    del self._groups[kind][rule.receiver, rule.sender]
                if not self._groups[kind]:
                    del self._groups[kind]
            return rule

    def recipients(self, message: Message) -> tuple[Identifier, ...]:
        """The receivers that the rules add: each once, in a fixed order, without the message's own
        receiver.
        """
        type, subtype = message.type, message.subtype
        receiver, sender = message.receiver, message.sender
        found: list[_Bundle] = []
        for kind in ((type, subtype), (type, ""), ("", subtype), ("", "")):
            group = self._groups.get(kind)
            if group is not None:
                people = ((receiver, sender), (receiver, None), (None, sender), (None, None))
                found += filter(None, map(group.get, people))
        if not found:
            return ()
        several = [self._recipients_of(bundle) for bundle in found]
        together = several[0] if len(several) == 1 else _united(several)
        if message.receiver is not None and message.receiver in together:
            return tuple(each for each in together if each != message.receiver)
        return together

    def _bundle(self, rule: RoutingRule) -> _Bundle:
        """The rules with the properties of a rule, which are about to change."""
        group = self._groups.setdefault((rule.type, rule.subtype), {})
        bundle = group.setdefault((rule.receiver, rule.sender), _Bundle())
        bundle.recipients = None
        return bundle

    def _recipients_of(self, bundle: _Bundle) -> tuple[Identifier, ...]:
        known = bundle.recipients
        if known is not None:
            return known
        with self._guard:  # a rule that is added meanwhile must not be lost from the cache
            bundle.recipients = _united(rule.to for _id, rule in bundle.rules)
            return bundle.recipients


class _Bundle:
    """Rules with exactly the same properties, by id."""

    __slots__ = ("recipients", "rules")

    def __init__(self) -> None:
        self.rules: list[tuple[str, RoutingRule]] = []
        self.recipients: tuple[Identifier, ...] | None = None
        """The receivers of all of them, cached."""


def _id(entry: tuple[str, RoutingRule]) -> str:
    return entry[0]


def _rank(rule: RoutingRule) -> tuple[tuple[bool, ...], str]:
    return tuple(not is_set for is_set in rule.properties()), rule.id


def _united(several: Iterable[tuple[Identifier, ...]]) -> tuple[Identifier, ...]:
    return tuple(dict.fromkeys(each for some in several for each in some))


def with_id(rule: RoutingRule) -> RoutingRule:
    """The rule with an id; raises InvalidInput for an invalid rule.

    >>> rule = RoutingRule(type="TASK", to=(Identifier("peer", "ana"),))
    >>> with_id(rule).id == with_id(rule).id != ""
    True
    """
    check_rule(rule)
    if rule.id:
        return rule
    parts = [rule.type, rule.subtype, str(rule.receiver or ""), str(rule.sender or "")]
    made = content_id("routing", *parts, *(str(each) for each in rule.to))
    return msgspec.structs.replace(rule, id=made)


def check_rule(rule: RoutingRule) -> None:
    """Raises InvalidInput for a rule that matches every message or names no receiver."""
    if not any(rule.properties()):
        raise InvalidInput(
            "the rule would match every message",
            code="routing.matches_everything",
            hint="set at least one of type, subtype, receiver and sender",
        )
    if not rule.to:
        raise InvalidInput(
            "the rule names no receiver",
            code="routing.no_recipient",
            hint='write to = ["peer:NAME"], ["collective:NAME"] or ["component:NAME"]',
        )
    if len(rule.to) > MOST_RECIPIENTS:
        raise InvalidInput(
            f"the rule names {len(rule.to)} recipients; {MOST_RECIPIENTS} are allowed",
            code="routing.too_many",
            hint="put them into a collective",
        )
    _check_names(rule)


def _check_names(rule: RoutingRule) -> None:
    identifiers = [*rule.to, *filter(None, (rule.receiver, rule.sender))]
    for name in (rule.id, rule.type, rule.subtype, *(each.name for each in identifiers)):
        if len(name) > LONGEST_NAME or not (name.isprintable() or not name):
            raise InvalidInput(
                f"{name[:40]!r} cannot be a name in a routing rule",
                code="routing.bad_name",
                hint=f"at most {LONGEST_NAME} characters that can be printed",
            )


class RoutingRecords:
    """The stored rules of this node. Any thread may read; changes belong to one event loop."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        of_site: Iterable[RoutingRule] = (),
    ) -> None:
        self._clock = clock
        self._of_site = {rule.id: rule for rule in map(with_id, of_site)}
        self._routing = RoutingTable(self._of_site.values())
        self._store = LoggedRecords(channels, records, TABLE)
        self._looked_ns = clock.steady_ns()

    async def open(self) -> None:
        """Loads the stored rules; from then on they are in force."""
        await run_blocking(self._load)
        await self._store.append_again()

    def recipients(self, message: Message) -> tuple[Identifier, ...]:
        """See RoutingTable. Looks for changes of other engines every second, which blocks: for the
        engine's worker thread.
        """
        now_ns = self._clock.steady_ns()
        if now_ns - self._looked_ns >= _LOOK_EVERY_NS:
            self._looked_ns = now_ns
            self.refresh()
        return self._routing.recipients(message)

    def rules(self) -> list[RoutingRule]:
        """Every rule in force, in the order in which they count."""
        return self._routing.rules()

    def is_of_site(self, rule_id: str) -> bool:
        """Whether the rule stands in the site file."""
        return rule_id in self._of_site

    def refresh(self) -> bool:
        """Loads changes of other engines; True when there were any. One read of the records;
        blocks.
        """
        if not self._store.has_changed():
            return False
        self._load()
        return True

    async def add(self, rule: RoutingRule, *, by: str = "") -> str:
        """Puts a rule in force for good and returns its id; durable when it returns.

        Raises as RoutingTable.add does.
        """
        rule = with_id(rule)
        async with self._store.turn:
            await run_blocking(self.refresh)
            if self._routing.get(rule.id) is not None:
                return self._routing.add(rule)
            put = Put(TABLE, self._store.key(rule.id), msgspec.msgpack.encode(rule))
            event = self._event("added", rule, by)
            await self._store.change(put, event, lambda: self._routing.add(rule))
        return rule.id

    async def remove(self, rule_id: str, *, by: str = "") -> RoutingRule | None:
        """Takes a rule out of force for good and returns it; None when there is none of that id.

        Raises Conflict for a rule of the site file, which would be back after the next start.
        """
        async with self._store.turn:
            await run_blocking(self.refresh)
            if self.is_of_site(rule_id):
                raise Conflict(
                    f"the routing rule {rule_id!r} is one of the site file",
                    code="routing.of_site",
                    hint="take it out of [[routing]] in site.toml and start the node again",
                )
            rule = self._routing.get(rule_id)
            if rule is not None:
                delete, event = (
                    Delete(TABLE, self._store.key(rule_id)),
                    self._event("removed", rule, by),
                )
                await self._store.change(delete, event, lambda: self._routing.remove(rule_id))
            return rule

    def _event(self, what: str, rule: RoutingRule, by: str) -> Event:
        data = {"change": what, "rule": shown_rule(rule), "by": by}
        now_ms = self._clock.now_ms()
        return self._store.event(
            source=SOURCE, type=CHANGED, subject=rule.id, time=now_ms, data=data
        )

    def _load(self) -> None:
        with self._store.guard:
            rules = dict(self._of_site)
            for name, raw in self._store.entries():
                rules.setdefault(name, msgspec.msgpack.decode(raw, type=RoutingRule))
            self._routing = RoutingTable(rules.values())


def shown_rule(rule: RoutingRule) -> dict[str, object]:
    """The rule as JSON shows it: names as text, empty properties left out."""
    shown: dict[str, object] = {"id": rule.id, "type": rule.type, "subtype": rule.subtype}
    shown |= {"receiver": str(rule.receiver or ""), "sender": str(rule.sender or "")}
    return {key: value for key, value in shown.items() if value} | {
        "to": [str(each) for each in rule.to]
    }


def routing_from_site(
    file: TomlFile, *, peers: Collection[str], collectives: Collection[str]
) -> tuple[tuple[RoutingRule, ...], list[Problem]]:
    """The rules of `[[routing]]` and all their problems; never raises for a wrong site.

    A peer or collective that the site does not declare is a warning: it may be added at run time.
    """
    problems: list[Problem] = []
    known = {"peer": peers, "collective": collectives}
    rules: dict[str, RoutingRule] = {}
    for table in _tables(file, problems):
        rule = _rule(table, known)
        if rule is not None and rules.setdefault(rule.id, rule) is not rule:
            message = (
                f"another rule has the id {rule.id!r}"
                if table.has("id")
                else "this rule stands there twice"
            )
            table.fault("id", "routing.id_taken", message, hint="leave one of them out")
    return tuple(rules.values()), problems


def _tables(file: TomlFile, problems: list[Problem]) -> Iterator[Fields]:
    given = file.values.get("routing", [])
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        message = "routing is not a list of tables"
        problems.append(
            file.problem(("routing",), "site.not_a_table", message, hint="write [[routing]]")
        )
        return
    for at, entry in enumerate(given):
        section = Section(file, ("routing", f"[{at}]"), entry)
        yield Fields(section, problems, known=_KEYS, strict=True)


def _rule(table: Fields, known: dict[str, Collection[str]]) -> RoutingRule | None:
    before = len(table.problems)
    recipients = [_read_identifier(table, "to", text, known) for text in table.texts("to", ())]
    rule = RoutingRule(
        id=table.text("id", ""),
        type=table.text("type", ""),
        subtype=table.text("subtype", ""),
        receiver=_optional_identifier(table, "receiver", known),
        sender=_optional_identifier(table, "sender", known),
        to=tuple(each for each in recipients if each is not None),
    )
    if any(problem.severity == "error" for problem in table.problems[before:]):
        return None
    try:
        return with_id(rule)
    except InvalidInput as error:
        table.report(_PLACE.get(error.code, ""), error)
        return None


def _optional_identifier(
    table: Fields, key: str, known: dict[str, Collection[str]]
) -> Identifier | None:
    text = table.text(key, "")
    return _read_identifier(table, key, text, known) if text else None


def _read_identifier(
    table: Fields, key: str, text: str, known: dict[str, Collection[str]]
) -> Identifier | None:
    try:
        found = Identifier.parse(text)
    except InvalidInput as error:
        table.report(key, error)
        return None
    declared = known.get(found.kind)
    if declared is not None and found.name not in declared:
        table.fault(
            key,
            "routing.unknown_name",
            f"the site declares no {found.kind} {found.name!r}",
            hint=suggest(found.name, declared),
            severity="warning",
        )
    return found
