"""Events that enter a node through its endpoints, links, bridges and actions. [CH-1, CH-15]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.access.identities import Admission, ChannelQuota
from rapport.channel.access.signatures import SignatureCheck
from rapport.channel.channel import AppendResult
from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import UnknownName
from rapport.core.event import Event
from rapport.kernel.clock import Clock
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.reader import MediationReader
from rapport.mediation.source_bindings import RAW_PREFIX, SourcePayload, source_payload
from rapport.node.interpretations import NodeInterpretations

_NO_SOURCES = "declare it in site.toml: [sources.NAME], or allow any: [site] open_sources = true"


class EventIntake:
    """Checks and appends events. All calls belong to one event loop."""

    def __init__(
        self,
        channels: LoggedChannels,
        clock: Clock,
        admission: Admission,
        mediation: MediationReader,
        interpretations: NodeInterpretations,
        *,
        signatures: SignatureCheck,
        channels_per_identity: int,
        open_sources: bool,
    ) -> None:
        """`open_sources`: sources that the site does not declare may send readings."""
        self._channels, self._clock, self._admission = channels, clock, admission
        self._mediation, self._interpretations = mediation, interpretations
        self._signatures, self._open_sources = signatures, open_sources
        self.quota = ChannelQuota(channels, channels_per_identity)
        self.is_mediating = False
        """Whether the node has started: a new raw channel is then mediated at once."""

    async def append(
        self, channel: str, events: Sequence[Event], *, identity: str = ""
    ) -> AppendResult:
        """Appends events; durable when it returns.

        Raises TooFast when `identity` sends more than it may, NotAllowed when it begins too many
        channels, and InvalidInput for a signature that the channel does not accept.
        """
        self._admission.rates.charge(identity, len(events), self._clock.now_ms())
        if self._signatures.demand_of(channel) is not None:
            await self._signatures.check(channel, events)
        if identity and not self._channels.holds(channel):
            async with self.quota.begin(identity, channel):
                appended = await self._channels.channel(channel).append(events)
        else:
            appended = await self._channels.channel(channel).append(events)
        if self.is_mediating and channel.startswith(RAW_PREFIX):
            await self._mediation.watch_new(channel.removeprefix(RAW_PREFIX))
        return appended

    def reading_of(self, source: str) -> SourcePayload:
        """How the payloads of a source are read; raises UnknownName for a source that the site does
        not declare, unless it allows open sources.
        """
        bindings = self._interpretations.bindings
        binding = bindings.get(source)
        if binding is not None:
            return source_payload(binding, self._mediation.in_force)
        if self._open_sources:
            return SourcePayload(FormatChoice())
        raise UnknownName("source", source, list(bindings), code="source.unknown", hint=_NO_SOURCES)

    def declared_id(self, raw: Event) -> str:
        """The id in the payload of a source's raw event; empty where the site declares none."""
        binding = self._interpretations.bindings.get(raw.source)
        if binding is None or not binding.own_id:
            return ""
        return source_payload(binding, self._mediation.in_force).declared_id(raw)
