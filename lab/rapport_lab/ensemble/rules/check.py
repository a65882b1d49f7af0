"""The 25 rules in one table, and the checking of a trace against them. [EN-3]

Each check costs about as much as the trace is long. `docs/concepts/ensemble-rules.md` gives each
rule's reading; a test compares it with this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from rapport.core.errors import UnknownName
from rapport.ensemble.trace import Trace
from rapport_lab.ensemble.rules import gossip_rules, group_rules, message_rules, pull_rules
from rapport_lab.ensemble.rules.trace_index import Breach, TraceIndex


class Rule(msgspec.Struct, frozen=True):
    """A rule of the source, and the function that looks for breaches of it."""

    number: int
    title: str
    trace_class: int
    """How it restricts traces, as table 4 of the source sorts the rules."""
    breaches: Callable[[TraceIndex], Iterator[Breach]]


RULES: Final = (
    Rule(1, "No local communication", 1, message_rules.no_local_communication),
    Rule(2, "Shared node interface", 2, message_rules.shared_node_interface),
    Rule(3, "Network topology", 3, message_rules.network_topology),
    Rule(4, "Radio broadcast", 3, message_rules.radio_broadcast),
    Rule(5, "Follow publish strategy", 3, message_rules.follow_publish_strategy),
    Rule(6, "Local message", 4, message_rules.local_message),
    Rule(7, "Combine parts", 2, message_rules.combine_parts),
    Rule(8, "Send what was put", 3, message_rules.send_what_was_put),
    Rule(9, "Periodic publish", 1, gossip_rules.periodic_publish),
    Rule(10, "Radio gossip", 3, message_rules.radio_gossip),
    Rule(11, "IP gossip", 4, gossip_rules.ip_gossip),
    Rule(12, "Follow retransmission strategy", 3, gossip_rules.follow_retransmission_strategy),
    Rule(13, "No circular retransmission", 1, gossip_rules.no_circular_retransmission),
    Rule(14, "Boundary condition", 4, gossip_rules.boundary_condition),
    Rule(15, "Partial publish", 1, group_rules.partial_publish),
    Rule(16, "Publish to groups", 4, group_rules.publish_to_groups),
    Rule(17, "Group join", 4, group_rules.group_join),
    Rule(18, "No header or pull retransmission", 4, pull_rules.no_header_or_pull_retransmission),
    Rule(19, "Received message", 1, pull_rules.received_message),
    Rule(20, "Publish headers", 1, pull_rules.publish_headers),
    Rule(21, "Process headers", 1, pull_rules.process_headers),
    Rule(22, "Pull outdated messages", 1, pull_rules.pull_outdated_messages),
    Rule(23, "Receive pull request", 1, pull_rules.receive_pull_request),
    Rule(24, "Retransmit pulled message", 1, pull_rules.retransmit_pulled_message),
    Rule(25, "Up-to-date messages", 4, pull_rules.up_to_date_messages),
)


def check(number: int, trace: Trace) -> list[Breach]:
    """The breaches of one rule, in the order in which they happened; raises UnknownName."""
    for rule in RULES:
        if rule.number == number:
            return list(rule.breaches(TraceIndex(trace)))
    raise UnknownName("rule", str(number), [str(rule.number) for rule in RULES])


def check_all(trace: Trace, rules: Iterable[Rule] = RULES) -> list[Breach]:
    """The breaches of all rules, rule by rule. Events have to be in order of time."""
    index = TraceIndex(trace)
    return [breach for rule in rules for breach in rule.breaches(index)]
