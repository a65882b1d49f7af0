"""What the engine was given, for all that works in its transactions. [CO-7]"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from rapport.communication.actions import Action, OwnAction, Phrases
from rapport.communication.content_rules import ANY_CONTENT, Contents
from rapport.communication.delivering.deciding import Decided
from rapport.communication.delivering.declining import Declines
from rapport.communication.delivering.handling import Route, always_heard
from rapport.communication.delivering.put_off import LookupCounts
from rapport.communication.delivering.tracking import Retry
from rapport.communication.peers import PeerDirectory
from rapport.communication.privacy.functions import PrivacyFunctions
from rapport.communication.templates import Facts
from rapport.core.detection import ACT_WITHIN_MS


class TakingParts(msgspec.Struct, kw_only=True):
    """What the engine was given."""

    directory: PeerDirectory
    actions: Mapping[str, Action]
    phrases: Phrases
    adapters: Collection[str]
    retry: Retry
    facts: Facts
    own_action: OwnAction
    route: Route
    functions: PrivacyFunctions
    plain_lane: bool
    decided: Decided
    declines: Declines
    lookups: LookupCounts = msgspec.field(default_factory=LookupCounts)
    contents: Contents = ANY_CONTENT
    act_within_ms: int = ACT_WITHIN_MS
    is_heard: Callable[[], bool] = always_heard
    """Whether any notification callback is registered."""
