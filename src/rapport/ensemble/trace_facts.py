"""What the rules need to know of a node, from its settings. [EN-3]"""

from __future__ import annotations

from rapport.ensemble.gossip.settings import GossipSettings
from rapport.ensemble.trace import NodeFacts, address_text
from rapport.transport.base import Address


def facts_of(
    settings: GossipSettings,
    *,
    address: Address | None = None,
    boundary: bool = False,
    groups: bool = False,
    grouper: bool = False,
) -> NodeFacts:
    """The facts of a node with these settings. Offsets that were drawn stay unknown: the first
    message of each kind shows them.
    """
    return NodeFacts(
        radio=settings.radio,
        ip=settings.ip,
        address=address_text(address) if address is not None else "",
        knowledge_ms=settings.knowledge_ms,
        header_ms=settings.header_ms,
        pull_ms=settings.pull_ms,
        knowledge_offset_ms=settings.knowledge_offset_ms,
        header_offset_ms=settings.header_offset_ms,
        pull_offset_ms=settings.pull_offset_ms,
        local_ms=settings.local_ms,
        global_ms=settings.global_ms,
        times=settings.times,
        fan_out=settings.fan_out,
        immediate=settings.answers == "immediate",
        answer_gap_ms=settings.answer_gap_ms,
        ahead_ms=settings.ahead_ms,
        forget_ms=settings.forget_ms,
        boundary=boundary,
        groups=groups,
        grouper=grouper,
    )
