"""What a communication engine is built from. [CO-7]"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from rapport.communication.actions import Action, OwnAction, Phrases, nothing_said
from rapport.communication.answers import USUAL_DECLINES, Declines
from rapport.communication.content_rules import ANY_CONTENT, Contents
from rapport.communication.delivery_state import DEFAULT_RETRY, RetryPolicy
from rapport.communication.message_plan import Route, no_routing
from rapport.communication.peers import PeerDirectory
from rapport.communication.privacy import NO_FUNCTIONS, PrivacyFunctions
from rapport.communication.schedule import LookupCounts
from rapport.communication.templates import Facts, nothing_known
from rapport.core.detection import ACT_WITHIN_MS


class EngineParts(msgspec.Struct, kw_only=True):
    """What an engine works with."""

    directory: PeerDirectory
    adapters: Collection[str]
    """Names of the adapters that have a dispatch; looked at anew for each batch."""
    actions: dict[str, Action] = {}
    """Actions of the site by phrase, as `same_phrase` writes it."""
    phrases: Phrases | Mapping[str, Sequence[str]] = {}
    """The action phrases of each version of a policy."""
    own_action: OwnAction = nothing_said
    """The action that a policy itself declares for a phrase; it overrides that of the site."""
    facts: Facts = nothing_known
    """What tables know of an alias, for texts."""
    act_within_ms: int = ACT_WITHIN_MS
    """Actions of older detections are recorded and not carried out."""
    contents: Contents = ANY_CONTENT
    """The schemas that the messages of actions have to fit."""
    route: Route = no_routing
    """The receivers that routing rules add to a message."""
    functions: PrivacyFunctions = NO_FUNCTIONS
    """The functions that privacy rules name."""
    retry: RetryPolicy = DEFAULT_RETRY
    declines: Declines = USUAL_DECLINES
    """Which answers decline."""
    lookups: LookupCounts = msgspec.field(default_factory=LookupCounts)
    """Counts receivers that could not be looked up."""
    fast_path: bool = True
    """Whether messages may go without a record of their own."""
    listening: Callable[[], bool] | None = None
    """Whether any notification callback is registered; None = as they are added to the engine."""

    def phrases_of(self, policy: str, version: str) -> Sequence[str]:
        """The action phrases of a version of a policy; a mapping holds for every version."""
        if isinstance(self.phrases, Mapping):
            return self.phrases.get(policy, ())
        return self.phrases(policy, version)

    def has_listeners(self) -> bool:
        """Whether messages to components reach a notification callback."""
        return self.listening is None or self.listening()
