"""Rules found by the properties they ask for, however many there are. Pure. [CO-6]

First by type and subtype (each said or left open: four look-ups), then among those by receiver and
sender. So a message costs at most nineteen look-ups and mostly about seven, with ten rules or with
a hundred thousand.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable

import msgspec

from rapport.core.message import Identifier, Message


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages with these properties also go `to` these; what is left empty matches anything."""

    id: str = ""
    type: str = ""
    subtype: str = ""
    receiver: Identifier | None = None
    sender: Identifier | None = None
    to: tuple[Identifier, ...] = ()

    def asks_for(self) -> tuple[bool, bool, bool, bool]:
        """Which properties are set; type counts most, sender least."""
        return bool(self.type), bool(self.subtype), bool(self.receiver), bool(self.sender)


class RoutingIndex:
    """All rules of a node. Changes and questions may come from different threads."""

    def __init__(self, rules: Iterable[RoutingRule] = ()) -> None:
        self._guard = threading.Lock()
        self._rules: dict[str, RoutingRule] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        """By type and subtype, empty for any."""
        for rule in rules:
            self.put(rule)

    def __len__(self) -> int:
        return len(self._rules)

    def get(self, rule_id: str) -> RoutingRule | None:
        """The rule of that id."""
        return self._rules.get(rule_id)

    def rules(self) -> list[RoutingRule]:
        """Every rule in the order in which they count."""
        with self._guard:
            found = list(self._rules.values())
        return sorted(found, key=_rank)

    def put(self, rule: RoutingRule) -> None:
        """Adds a rule, or replaces the one of the same id; in force when it returns."""
        with self._guard:
            self._forget(rule.id)
            self._rules[rule.id] = rule
            kind = rule.type, rule.subtype
            if kind not in self._groups:
                self._groups[kind] = _Group()
            self._groups[kind].add(rule)

    def drop(self, rule_id: str) -> RoutingRule | None:
        """Takes a rule out and returns it; it does not count any more when this returns."""
        with self._guard:
            return self._forget(rule_id)

    def recipients(self, message: Message) -> tuple[Identifier, ...]:
        """Whom the matching rules add, each once, in the order of the rules."""
        found: list[_Bundle] = []
        type, subtype = message.type, message.subtype
        for kind in _ways(type, subtype):
            group = self._groups.get(kind)
            if group is not None:
                group.find(message.receiver, message.sender, found)
        if not found:
            return ()
        several = [self._united(bundle) for bundle in found]
        return several[0] if len(several) == 1 else _united(several)

    def _united(self, bundle: _Bundle) -> tuple[Identifier, ...]:
        known = bundle.recipients
        if known is not None:
            return known
        with self._guard:  # a rule that comes in meanwhile must not be lost from what is kept
            bundle.recipients = _united(rule.to for _id, rule in bundle.rules)
            return bundle.recipients

    def _forget(self, rule_id: str) -> RoutingRule | None:
        rule = self._rules.pop(rule_id, None)
        if rule is None:
            return None
        kind = rule.type, rule.subtype
        self._groups[kind].remove(rule)
        if self._groups[kind].is_empty():
            del self._groups[kind]
        return rule


class _Bundle:
    """Rules that ask for exactly the same, by id."""

    __slots__ = ("recipients", "rules")

    def __init__(self) -> None:
        self.rules: list[tuple[str, RoutingRule]] = []
        self.recipients: tuple[Identifier, ...] | None = None
        """What they add together, once somebody asked."""


_Bundles = dict[object, _Bundle]


class _Group:
    """The rules of one type and subtype, by what they say of receiver and sender. None where there
    are none: with very many groups, looking into an empty dictionary costs a visit to memory.
    """

    __slots__ = ("by_both", "by_receiver", "by_sender", "others")

    def __init__(self) -> None:
        self.by_both: _Bundles | None = None
        self.by_receiver: _Bundles | None = None
        self.by_sender: _Bundles | None = None
        self.others: _Bundles | None = None

    def find(self, receiver: Identifier | None, sender: Identifier, found: list[_Bundle]) -> None:
        """Adds the bundles that match, in the order of their priority."""
        if receiver is not None:
            if self.by_both is not None and (both := self.by_both.get((receiver, sender))):
                found.append(both)
            if self.by_receiver is not None and (to := self.by_receiver.get(receiver)):
                found.append(to)
        if self.by_sender is not None and (by := self.by_sender.get(sender)):
            found.append(by)
        if self.others is not None and (rest := self.others.get(None)):
            found.append(rest)

    def add(self, rule: RoutingRule) -> None:
        """Puts a rule in its place."""
        name, key = _place(rule)
        bundles: _Bundles = getattr(self, name) or {}
        bundle = bundles.setdefault(key, _Bundle())
        insort(bundle.rules, (rule.id, rule), key=_id)
        bundle.recipients = None
        setattr(self, name, bundles)

    def remove(self, rule: RoutingRule) -> None:
        """Takes a rule out of its place."""
        name, key = _place(rule)
        bundles: _Bundles = getattr(self, name)
        bundle = bundles[key]
        del bundle.rules[bisect_left(bundle.rules, rule.id, key=_id)]
        bundle.recipients = None
        if not bundle.rules:
            del bundles[key]
        setattr(self, name, bundles or None)

    def is_empty(self) -> bool:
        """Whether no rule is left."""
        return all(getattr(self, name) is None for name in self.__slots__)


def _place(rule: RoutingRule) -> tuple[str, object]:
    """Where a rule stands in its group: the dictionary's name, and the key."""
    if rule.receiver is not None and rule.sender is not None:
        return "by_both", (rule.receiver, rule.sender)
    if rule.receiver is not None:
        return "by_receiver", rule.receiver
    return ("others", None) if rule.sender is None else ("by_sender", rule.sender)


def _ways(type: str, subtype: str) -> tuple[tuple[str, str], ...]:
    """The types and subtypes of rules that match these, highest priority first, each once."""
    if type and subtype:
        return (type, subtype), (type, ""), ("", subtype), ("", "")
    return ((type, subtype), ("", "")) if type or subtype else (("", ""),)


def _id(entry: tuple[str, RoutingRule]) -> str:
    return entry[0]


def _rank(rule: RoutingRule) -> tuple[tuple[bool, ...], str]:
    return tuple(not is_set for is_set in rule.asks_for()), rule.id


def _united(several: Iterable[tuple[Identifier, ...]]) -> tuple[Identifier, ...]:
    return tuple(dict.fromkeys(each for some in several for each in some))
