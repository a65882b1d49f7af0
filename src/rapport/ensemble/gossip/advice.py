"""What section 8.1 of the source advises, checked when a node is configured. [EN-8]"""

from __future__ import annotations

from collections.abc import Callable

from rapport.core.errors import Problem
from rapport.ensemble.gossip.settings import GossipSettings

_Rule = Callable[[GossipSettings], Problem | None]


def advice(settings: GossipSettings) -> list[Problem]:
    """Warnings for settings that work, but worse than they could; empty when all is well.

    What cannot work at all is refused when the settings are made.
    """
    rules = _ALWAYS + (_WITH_PULL if settings.pull_ms else ())
    return [problem for rule in rules if (problem := rule(settings)) is not None]


def _published_before_it_is_old(settings: GossipSettings) -> Problem | None:
    knowledge, local = settings.knowledge_ms, settings.local_ms
    if knowledge < local:
        return None
    return _warning(
        "outdated_before_published",
        f"knowledge counts as outdated after {local:g} ms but is published every {knowledge:g} ms",
        f"local_ms above knowledge_ms; {2 * knowledge:g} is good",
    )


def _two_periods_before_it_is_old(settings: GossipSettings) -> Problem | None:
    knowledge, local = settings.knowledge_ms, settings.local_ms
    if local <= knowledge or 2 * knowledge <= local:
        return None
    return _warning(
        "pulled_too_early",
        f"knowledge is pulled after {local:g} ms, though push may still bring it: it is published "
        f"every {knowledge:g} ms",
        f"local_ms of at least twice knowledge_ms: {2 * knowledge:g}",
    )


def _soon_enough_for_the_latency(settings: GossipSettings) -> Problem | None:
    latency, local = settings.acceptable_latency_ms, settings.local_ms
    if latency is None or 2 * local <= latency:
        return None
    return _warning(
        "pulled_too_late",
        f"knowledge is pulled after {local:g} ms, so it may arrive later than the acceptable "
        f"{latency:g} ms: the request and the answer take as long again",
        f"local_ms of at most half the acceptable latency: {latency / 2:g}",
    )


def _latency_can_be_reached(settings: GossipSettings) -> Problem | None:
    latency, knowledge = settings.acceptable_latency_ms, settings.knowledge_ms
    if latency is None or 4 * knowledge <= latency:
        return None
    return _warning(
        "published_too_seldom",
        f"with a publication every {knowledge:g} ms no setting of local_ms serves an acceptable "
        f"latency of {latency:g} ms",
        f"knowledge_ms of at most a quarter of it: {latency / 4:g}",
    )


def _headers_as_often_as_knowledge(settings: GossipSettings) -> Problem | None:
    knowledge, header = settings.knowledge_ms, settings.header_ms
    if header == knowledge:
        return None
    if header == 0:
        return _warning(
            "no_headers",
            "the node pulls but tells nobody what it received: who is further away cannot know "
            "what to pull",
            f"header_ms as knowledge_ms: {knowledge:g}",
        )
    if header < knowledge:
        return _warning(
            "headers_too_often",
            f"headers are told every {header:g} ms, knowledge only every {knowledge:g} ms",
            f"header_ms as knowledge_ms: {knowledge:g}",
        )
    return _warning(
        "headers_too_seldom",
        f"headers are told every {header:g} ms, knowledge every {knowledge:g} ms: what is missing "
        "is found late",
        f"header_ms as knowledge_ms ({knowledge:g}) or a little more",
    )


def _pulls_not_before_headers(settings: GossipSettings) -> Problem | None:
    if settings.header_ms <= settings.pull_ms:
        return None
    return _warning(
        "pulls_too_often",
        f"the node pulls every {settings.pull_ms:g} ms, but headers come only every "
        f"{settings.header_ms:g} ms",
        f"pull_ms of header_ms ({settings.header_ms:g}) or a little more",
    )


def _push_and_pull_in_balance(settings: GossipSettings) -> Problem | None:
    if settings.probability > 0 or not settings.radio:
        return None
    return _warning(
        "only_pull",
        "nothing is passed on unless it is pulled: each hop waits for headers and a pull",
        "probability above 0",
    )


def _unused_latency(settings: GossipSettings) -> Problem | None:
    if settings.acceptable_latency_ms is None or settings.pull_ms:
        return None
    return _warning(
        "latency_without_pull",
        "an acceptable latency is set, but without pull nothing sees to it",
        f"header_ms={settings.knowledge_ms:g}, pull_ms={settings.knowledge_ms:g}",
    )


def _warning(name: str, message: str, hint: str) -> Problem:
    return Problem(severity="warning", code=f"ensemble.{name}", message=message, hint=hint)


_ALWAYS: tuple[_Rule, ...] = (_latency_can_be_reached, _unused_latency)
_WITH_PULL: tuple[_Rule, ...] = (
    _published_before_it_is_old,
    _two_periods_before_it_is_old,
    _soon_enough_for_the_latency,
    _headers_as_often_as_knowledge,
    _pulls_not_before_headers,
    _push_and_pull_in_balance,
)
