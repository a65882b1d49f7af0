"""Settings of gossip (table 3 of the source), and warnings about unfavourable combinations.
[EN-5, EN-8, EN-9]
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.core.errors import InvalidInput, Problem

Answers = Literal["next", "immediate"]
Times = Literal["created", "received"]

_PERIODS = ("knowledge_ms", "header_ms", "pull_ms")
_DURATIONS = ("local_ms", "global_ms", "answer_gap_ms", "forget_ms", "part_wait_ms", "ahead_ms")
_COUNTS = ("components", "waiting", "askers", "part_tries", "parts_messages", "parts_bytes")


class GossipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked when it is made: what cannot work raises InvalidInput; `advice` reports what works
    badly.
    """

    knowledge_ms: float = 5_000
    """Between two publications of the node's components; the age of knowledge one hop away is half
    of it on average. Each publication costs a message, and those that pass it on theirs.
    """
    header_ms: float = 0
    """Between two notices of what was received lately; 0: none are sent."""
    pull_ms: float = 0
    """Between two looks for what is outdated; 0: nothing is pulled."""
    local_ms: float = 10_000
    """A component whose held version is older is pulled. Twice `knowledge_ms` or more, or what is
    on its way is pulled; at most half the acceptable latency.
    """
    global_ms: float = 20_000
    """A component that no node received for longer is given up; more than `local_ms`."""
    probability: float = 0.5
    """With which a version that was received for the first time is passed on, where no other
    strategy is given; messages grow with it, at best to one from each node for each version.
    """
    fan_out: int = 2
    """To how many known nodes a version is sent on IP; messages are its multiples."""
    answers: Answers = "next"
    """What a pull on the radio leads to: the next version that passes is passed on surely, or
    what is held is sent at once. The first costs no message more, the second saves a period. On IP
    the answer is always immediate.
    """
    times: Times = "created"
    """What counts as the time of a reception: when the version was created (so clocks of nodes
    must agree to well below `local_ms`), or when it arrived here.
    """
    acceptable_latency_ms: float | None = None
    """How late knowledge may arrive; nothing but advice follows from it."""
    radio: bool = True
    """The node talks to all in range."""
    ip: bool = False
    """The node talks to addresses; with `radio` it joins both worlds."""
    part_bytes: int = 1_024
    """Knowledge that is larger goes in parts of this size, and packets of headers and pulls hold
    about as much.
    """
    part_wait_ms: float = 300
    """So long after the last part that came, missing ones are pulled; each time so much later."""
    part_tries: int = 8
    """So often without any coming; then the version is given up."""
    parts_messages: int = 256
    """Most versions that wait for parts at a time."""
    parts_bytes: int = 8 * 1024 * 1024
    """Most bytes in them together."""
    answer_gap_ms: float = 1_000
    """The same thing is not sent again in answer to pulls within this time."""
    components: int = 20_000
    """Most components a node knows of; for more, the one it knows longest is forgotten."""
    forget_ms: float = 600_000
    """A component of which nothing newer came for so long is forgotten."""
    waiting: int = 4_096
    """Most versions whose strategy waits; for more it decides at once."""
    askers: int = 64
    """Most frequent askers remembered for a component."""
    ahead_ms: float = 86_400_000
    """Versions further in the future of this node's clock are not taken: one forged version would
    hide all true ones for `forget_ms`. Not looked at while the clock was never set.
    """
    knowledge_offset_ms: float | None = None
    """Steady time of the first publication, modulo the period; none: drawn."""
    header_offset_ms: float | None = None
    pull_offset_ms: float | None = None

    def __post_init__(self) -> None:
        _check(self)


def _check(settings: GossipSettings) -> None:
    _check_numbers(settings)
    if settings.global_ms <= settings.local_ms and settings.pull_ms:
        raise _impossible(
            f"pulls are given up after {settings.global_ms:g} ms, before anything is pulled after "
            f"{settings.local_ms:g} ms",
            "global_ms must be greater than local_ms",
        )
    if not (settings.radio or settings.ip):
        raise _impossible("the node has neither radio nor IP", "set radio or ip")


def _check_numbers(settings: GossipSettings) -> None:
    for name in _PERIODS:
        period = getattr(settings, name)
        if not 0 <= period < float("inf"):
            raise _impossible(f"{name} is {period:g}", "a period is 0 ms (never) or more")
    for name in _DURATIONS:
        if not getattr(settings, name) > 0:
            raise _impossible(f"{name} is {getattr(settings, name):g}", "times are above 0 ms")
    for name in _COUNTS:
        if getattr(settings, name) < 1:
            raise _impossible(f"{name} is {getattr(settings, name)}", "at least 1 is needed")
    if not 0 <= settings.probability <= 1:
        raise _impossible(f"probability is {settings.probability:g}", "it lies between 0 and 1")
    if settings.fan_out < 0:
        raise _impossible(f"fan_out is {settings.fan_out}", "it is 0 or more")
    if settings.part_bytes < 64:
        raise _impossible(f"part_bytes is {settings.part_bytes}", "64 bytes or more")


def _impossible(what: str, hint: str) -> InvalidInput:
    return InvalidInput(
        f"gossip cannot work so: {what}", code="ensemble.bad_gossip_settings", hint=hint
    )


def advice(settings: GossipSettings) -> list[Problem]:
    """Warnings for settings that work, but worse than they could; empty when all is well.

    What cannot work at all is refused when the settings are made.
    """
    pieces = [*_of_latency(settings), *(_of_pull(settings) if settings.pull_ms else ())]
    return [
        Problem(severity="warning", code=f"ensemble.{name}", message=message, hint=hint)
        for applies, name, message, hint in pieces
        if applies
    ]


_Piece = tuple[bool, str, str, str]
"""Whether it applies, the name of the code, what is so, and what would be better."""


def _of_latency(settings: GossipSettings) -> tuple[_Piece, ...]:
    knowledge, local = settings.knowledge_ms, settings.local_ms
    latency, pulls = settings.acceptable_latency_ms, settings.pull_ms > 0
    if latency is None:
        return ()
    return (
        (
            4 * knowledge > latency,
            "published_too_seldom",
            f"with a publication every {knowledge:g} ms no setting of local_ms serves an "
            f"acceptable latency of {latency:g} ms",
            f"knowledge_ms of at most a quarter of it: {latency / 4:g}",
        ),
        (
            not pulls,
            "latency_without_pull",
            "an acceptable latency is set, but without pull nothing sees to it",
            f"header_ms={knowledge:g}, pull_ms={knowledge:g}",
        ),
        (
            pulls and 2 * local > latency,
            "pulled_too_late",
            f"knowledge is pulled after {local:g} ms, so it may arrive later than the acceptable "
            f"{latency:g} ms: the request and the answer take as long again",
            f"local_ms of at most half the acceptable latency: {latency / 2:g}",
        ),
    )


def _of_pull(settings: GossipSettings) -> tuple[_Piece, ...]:
    knowledge, header, local = settings.knowledge_ms, settings.header_ms, settings.local_ms
    return (
        (
            knowledge >= local,
            "outdated_before_published",
            f"knowledge counts as outdated after {local:g} ms but is published every "
            f"{knowledge:g} ms",
            f"local_ms above knowledge_ms; {2 * knowledge:g} is good",
        ),
        (
            knowledge < local < 2 * knowledge,
            "pulled_too_early",
            f"knowledge is pulled after {local:g} ms, though push may still bring it: it is "
            f"published every {knowledge:g} ms",
            f"local_ms of at least twice knowledge_ms: {2 * knowledge:g}",
        ),
        (
            header == 0 < knowledge,
            "no_headers",
            "the node pulls but announces nothing that it received: distant nodes cannot know "
            "what to pull",
            f"header_ms as knowledge_ms: {knowledge:g}",
        ),
        (
            0 < header < knowledge,
            "headers_too_often",
            f"headers are sent every {header:g} ms, knowledge only every {knowledge:g} ms",
            f"header_ms as knowledge_ms: {knowledge:g}",
        ),
        (
            header > knowledge,
            "headers_too_seldom",
            f"headers are sent every {header:g} ms, knowledge every {knowledge:g} ms: what is "
            "missing is found late",
            f"header_ms as knowledge_ms ({knowledge:g}) or a little more",
        ),
        (
            header > settings.pull_ms,
            "pulls_too_often",
            f"the node pulls every {settings.pull_ms:g} ms, but headers come only every "
            f"{header:g} ms",
            f"pull_ms of header_ms ({header:g}) or a little more",
        ),
        (
            settings.radio and not settings.probability,
            "only_pull",
            "nothing is passed on unless it is pulled: each hop waits for headers and a pull",
            "probability above 0",
        ),
    )
