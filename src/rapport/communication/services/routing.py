"""Routing rules: who else gets a message, by its type, subtype, receiver and sender. Pure. [CO-6]

All rules that match count. Rules that set a property of higher priority come first (type, subtype,
receiver, sender), equal ones by their id; so the same rules give the same recipients in the same
order, in whatever order they were added.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.communication.services.routing_index import RoutingIndex, RoutingRule
from rapport.core.errors import DuplicateName, InvalidInput
from rapport.core.ids import content_id
from rapport.core.message import Identifier, Message

__all__ = ["Routing", "RoutingRule", "check_rule", "named"]

LONGEST_NAME = 200
"""Characters of a rule's id, type, subtype and of each name in it."""
MOST_RECIPIENTS = 1_000
"""Of one rule; more people are a collective."""


class Routing:
    """The rules in force. `recipients` costs the same for ten rules and for a hundred thousand."""

    def __init__(self, rules: Iterable[RoutingRule] = ()) -> None:
        self._index = RoutingIndex(named(rule) for rule in rules)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, rule: RoutingRule) -> str:
        """Puts a rule in force and returns its id; one without an id is named by what it says, so
        adding it again changes nothing.

        Raises InvalidInput for a rule that may not be, DuplicateName when another rule has its id.
        """
        rule = named(rule)
        known = self._index.get(rule.id)
        if known is not None and known != rule:
            raise DuplicateName(
                f"another routing rule has the id {rule.id!r}",
                code="routing.id_taken",
                hint="remove it first, or leave the id out",
            )
        if known is None:
            self._index.put(rule)
        return rule.id

    def remove(self, rule_id: str) -> RoutingRule | None:
        """Takes a rule out of force and returns it; None when there is none of that id."""
        return self._index.drop(rule_id)

    def get(self, rule_id: str) -> RoutingRule | None:
        """The rule of that id; None when there is none."""
        return self._index.get(rule_id)

    def rules(self) -> list[RoutingRule]:
        """Every rule, in the order in which they count."""
        return self._index.rules()

    def recipients(self, message: Message) -> tuple[Identifier, ...]:
        """Who gets the message beside its receiver: each once, in a fixed order, and never the
        receiver again.
        """
        found = self._index.recipients(message)
        if message.receiver is not None and message.receiver in found:
            return tuple(each for each in found if each != message.receiver)
        return found


def named(rule: RoutingRule) -> RoutingRule:
    """The rule with an id; raises InvalidInput unless it may be a rule.

    >>> rule = RoutingRule(type="TASK", to=(Identifier("peer", "ana"),))
    >>> named(rule).id == named(rule).id != ""
    True
    """
    check_rule(rule)
    if rule.id:
        return rule
    parts = [rule.type, rule.subtype, str(rule.receiver or ""), str(rule.sender or "")]
    made = content_id("routing", *parts, *(str(each) for each in rule.to))
    return msgspec.structs.replace(rule, id=made)


def check_rule(rule: RoutingRule) -> None:
    """Raises InvalidInput for a rule that would send every message on, or send it to nobody."""
    if not any(rule.asks_for()):
        raise InvalidInput(
            "the rule would match every message",
            code="routing.matches_everything",
            hint="set at least one of type, subtype, receiver and sender",
        )
    if not rule.to:
        raise InvalidInput(
            "the rule names nobody to send messages to",
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
    who = [*rule.to, *filter(None, (rule.receiver, rule.sender))]
    for name in (rule.id, rule.type, rule.subtype, *(each.name for each in who)):
        if len(name) > LONGEST_NAME or not (name.isprintable() or not name):
            raise InvalidInput(
                f"{name[:40]!r} cannot be a name in a routing rule",
                code="routing.bad_name",
                hint=f"at most {LONGEST_NAME} characters that can be printed",
            )
