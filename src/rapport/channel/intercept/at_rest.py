"""Delivery interceptors for who reads the log beside a node or without one: the kept ones are made
again, so that a rule that hides or changes events holds there, too. [CH-10]
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from rapport.channel.channel import Channels
from rapport.channel.intercept.chain import pass_delivered
from rapport.channel.intercept.interceptor import Declared, Interceptor, Standing
from rapport.channel.intercept.keeping import INTERCEPTED
from rapport.channel.intercept.kinds import Workshop, make_interceptor
from rapport.core.errors import RapportError, Unsupported
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock


def delivered_at_rest(
    kept: Sequence[Declared],
    channels: Channels,
    clock: Clock,
    channel: str,
    reader: str,
    events: Sequence[StoredEvent],
) -> list[StoredEvent]:
    """What a reader is given of a channel's events; raises Unsupported for an interceptor that only
    the running node can make, rather than show what it may hide.
    """
    workshop = Workshop(channels=channels, clock=clock)
    chain = [
        Standing(one, _made(one, workshop), is_kept=True)
        for one in kept
        if one.at == "delivery" and channel != INTERCEPTED and fnmatchcase(channel, one.channels)
    ]
    given, _switched_off = pass_delivered(chain, channel, reader, events)
    return given


def _made(declared: Declared, workshop: Workshop) -> Interceptor:
    try:
        return make_interceptor(declared.kind, declared.settings, workshop)
    except RapportError as error:
        raise Unsupported(
            f"reading past the interceptor {declared.name!r}",
            "this program",
            hint=f"ask the running node, at GET /channels/NAME/events ({error.message})",
        ) from error
