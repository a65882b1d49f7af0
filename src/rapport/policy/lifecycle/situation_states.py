"""Open situations of a node's policies: what people ask about them, and who looks after them.
[SI-4, SI-12, SI-14]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from rapport.channel.channel import Channels
from rapport.core.detection import (
    DETECTED,
    ENDED,
    Acknowledgement,
    Detection,
    identity_order,
    situation_key,
)
from rapport.core.errors import Conflict, InvalidInput, UnknownName, nearest_names
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import run_blocking
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.open_situations import OpenSituation, OpenSituations
from rapport.policy.engine.shadow_episodes import ShadowTally
from rapport.policy.lifecycle.registry import PolicyState
from rapport.policy.situations.current_states import SituationState

LONGEST_NAME = 200
AcknowledgedBy = Callable[[str], str]
"""Returns the person who acknowledged a situation, by its key; empty: nobody. Reads the disk."""


class ShownState(msgspec.Struct, frozen=True, kw_only=True):
    """A situation that is open, pending or unknown, and who looks after it."""

    state: SituationState
    acknowledged_by: str = ""


class ShadowStates(msgspec.Struct, frozen=True, kw_only=True):
    """The situations of the version in the shadow now: nobody is notified of them."""

    version: str
    tally: ShadowTally
    """Situations that overlap one of the other version, and those that do not."""
    open: int
    pending: int
    unknown: int
    states: tuple[SituationState, ...] = ()


class PolicyStates(msgspec.Struct, frozen=True, kw_only=True):
    """The situations of one policy now; at most 1,000 are listed, open ones first."""

    policy: str
    version: str
    policy_state: PolicyState
    """Situations are followed while it is `running`."""
    problem: str = ""
    """Why it does not run, or not here."""
    time: int = 0
    """Event time up to which everything is decided."""
    open: int = 0
    pending: int = 0
    unknown: int = 0
    states: tuple[ShownState, ...] = ()
    shadow: ShadowStates | None = None


class AcknowledgedSituations(msgspec.Struct, frozen=True, kw_only=True):
    """The situations that somebody looks after from now on."""

    policy: str
    by: str
    situations: tuple[dict[str, str], ...]
    """Their bindings."""


HasSituation = Callable[[str, str], bool]
"""Whether a version of a policy has a situation; of an unknown one what the newest has."""


class DetectedSituations:
    """Open situations of policies that run on Spark, as `detections` tells; it is read as far as it
    goes when they are asked about, the first time from its beginning.
    """

    def __init__(self, channels: Channels, has_situation: HasSituation) -> None:
        self._channels, self._has_situation = channels, has_situation
        self._open = OpenSituations()
        self._position = 0
        self._turn = asyncio.Lock()

    async def of(self, policy: str) -> list[OpenSituation]:
        """The open situations of a policy."""
        async with self._turn:
            channel = self._channels.channel("detections")
            while batch := await channel.read_after(self._position):
                self._position = batch[-1].position
                for stored in batch:
                    if stored.event.type in (DETECTED, ENDED):
                        self._note(Detection.from_event(stored.event))
            return self._open.of(policy)

    def _note(self, found: Detection) -> None:
        is_own = self._has_situation(found.policy, found.version)
        self._open.note([found], {found.policy} if is_own else ())


class SituationService:
    """Questions and acknowledgements; each takes the engine's turn."""

    def __init__(
        self, channels: Channels, engine: PolicyEngine, clock: Clock, has_situation: HasSituation
    ) -> None:
        self._channels, self._engine, self._clock = channels, engine, clock
        self._has_situation = has_situation
        self._detected = DetectedSituations(channels, has_situation)
        self.acknowledged_by: AcknowledgedBy = _nobody

    async def open(self, policy: str) -> list[OpenSituation]:
        """The open situations of a policy, wherever it runs."""
        if policy not in self._engine.on_spark:
            return self._engine.situations(policy)
        return await self._detected.of(policy) if self._has_situation(policy, "") else []

    async def states(
        self, policy: str, version: str, state: PolicyState, shadow: str = ""
    ) -> PolicyStates:
        """What is open, pending and unknown, also of the version in the shadow. Raises Conflict for
        a policy without a situation.
        """
        engine = self._engine
        async with engine.turn:
            await engine.progress()
            found = engine.situation_states(policy)
            failed = engine.failed().get(policy)
            beside = self._shadow_states(policy, shadow)
        known = await self.open(policy)
        if found is None:
            problem = failed.message if failed is not None else f"the policy is {state}"
            if state == "running" and failed is None:
                if not known and not self._has_situation(policy, version) and beside is None:
                    raise _no_situation(policy)
                problem = "it runs on Spark: from here only what is open is seen"
                if beside is not None:
                    problem = "it has conditions, of which nothing stays open"
            return PolicyStates(
                policy=policy,
                version=version,
                policy_state=state,
                problem=problem,
                open=len(known),
                states=await self._shown(policy, [_without_truth(one) for one in known]),
                shadow=beside,
            )
        return PolicyStates(
            policy=policy,
            version=version,
            policy_state=state,
            time=found.time,
            open=found.open,
            pending=found.pending,
            unknown=found.unknown,
            states=await self._shown(policy, found.states),
            shadow=beside,
        )

    def _shadow_states(self, policy: str, version: str) -> ShadowStates | None:
        found = self._engine.shadow_situations(policy)
        if found is None:
            return None
        return ShadowStates(
            version=version,
            tally=self._engine.shadows()[policy],
            open=found.open,
            pending=found.pending,
            unknown=found.unknown,
            states=found.states,
        )

    async def _shown(self, policy: str, states: Sequence[SituationState]) -> tuple[ShownState, ...]:
        """The states with who looks after them; reads the records in a thread."""

        def shown(one: SituationState) -> ShownState:
            by = ""
            if one.state == "open" and one.began is not None:
                by = self.acknowledged_by(situation_key(policy, one.bindings, one.began))
            return ShownState(state=one, acknowledged_by=by)

        return await run_blocking(lambda: tuple(map(shown, states)))

    async def acknowledge(
        self, policy: str, bindings: Mapping[str, str], by: str
    ) -> AcknowledgedSituations:
        """Somebody looks after the open situations with these bindings, all that are open if none
        is given: nobody is asked about them any more, and their end is still told. Recorded in
        `detections`.

        Raises InvalidInput for a wrong alias or name, Conflict when no such situation is open.
        """
        _check_name(by)
        await self.open(policy)  # what is read for the first time keeps no engine waiting
        async with self._engine.turn:
            await self._engine.progress()
            known = await self.open(policy)
            chosen = [one for one in known if bindings.items() <= one.bindings.items()]
            if not chosen:
                raise _nothing_open(policy, bindings, known)
            now_ms = self._clock.now_ms()
            events = [
                Acknowledgement(
                    policy=policy, bindings=one.bindings, began=one.began, by=by, time=now_ms
                ).to_event(source=self._engine.name)
                for one in chosen
            ]
            await self._channels.channel("detections").append(events)
        return AcknowledgedSituations(
            policy=policy, by=by, situations=tuple(one.bindings for one in chosen)
        )


def _nobody(_key: str) -> str:
    return ""


def _without_truth(one: OpenSituation) -> SituationState:
    return SituationState(bindings=one.bindings, state="open", truth="unknown", began=one.began)


def _check_name(by: str) -> None:
    if not by or len(by) > LONGEST_NAME or not by.isprintable():
        raise InvalidInput(
            f"{by[:40]!r} is not the name of somebody",
            code="policy.bad_name",
            hint=f"at most {LONGEST_NAME} characters that can be printed",
        )


def _no_situation(policy: str) -> Conflict:
    return Conflict(
        f"{policy!r} has conditions and no situation, so that nothing of it stays open",
        code="policy.no_situation",
        hint="its detections: rapport read detections",
    )


def _nothing_open(
    policy: str, bindings: Mapping[str, str], known: list[OpenSituation]
) -> Conflict | UnknownName:
    if not known:
        return Conflict(
            f"no situation of {policy!r} is open",
            code="policy.not_open",
            hint=f"see rapport policy states {policy}",
        )
    aliases = sorted(known[0].bindings)
    for alias in bindings:
        if alias not in aliases:
            return UnknownName("alias", alias, aliases, code="policy.unknown_alias")
    wanted = ", ".join(f"{alias}={identity}" for alias, identity in sorted(bindings.items()))
    alias, identity = next(iter(bindings.items()))
    ids = sorted({one.bindings[alias] for one in known}, key=identity_order)
    near = nearest_names(identity, ids, limit=1)
    return Conflict(
        f"no situation of {policy!r} is open for {wanted}",
        code="policy.not_open",
        hint=f"did you mean {alias}={near[0]}?" if near else f"see rapport policy states {policy}",
    )
