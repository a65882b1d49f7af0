"""Readings that devices without a link sent by gossip: each is published once and confirmed by the
node's own knowledge. [EN-14]

Order for each version: the readings, then the receipt, then the word to the device. A crash in
between makes it send them again; the channel knows their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from rapport.channel.dead.letters import bury
from rapport.channel.federation.intake import Append
from rapport.channel.logged.channels import LoggedChannels
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.knowledge import Knowledge
from rapport.core.release import CARRIED
from rapport.ensemble.device_readings import (
    Carried,
    Receipt,
    new_readings,
    parse_device_knowledge,
    reading_id,
)
from rapport.kernel.telemetry import get_logger
from rapport.mediation.binding import RAW_PREFIX
from rapport.node.ensemble_inbox import Inbox
from rapport.site.ensemble_ties import CarriedTie
from rapport.store.base import Put, RecordStore

TYPE = "rapport.ensemble.carried"
_TABLE = "ensemble.receipts"
_PUBLISHED = 500
"""Receipts that the node's knowledge holds; those of devices heard last."""
_BESIDE = 64
"""Bytes of knowledge beside them."""

_log = get_logger(__name__)


class CarriedCounts(msgspec.Struct):
    """Since the start."""

    readings: int = 0
    repeated: int = 0
    """Readings that the channel had already."""
    missing: int = 0
    """Readings that devices gave up, as they had too many."""
    refused: int = 0
    """Readings that a channel did not take: dead letters tell why."""
    not_read: int = 0
    """Versions that say nothing sensible of readings."""


class CarriedReadings:
    """Takes readings from what devices publish."""

    def __init__(
        self,
        ties: Sequence[CarriedTie],
        channels: LoggedChannels,
        append: Append,
        *,
        collector: str,
        confirm: Callable[[dict[str, Receipt]], None],
        most_bytes: int = 65_536,
    ) -> None:
        """`collector`: the id of the component that confirms; `confirm` gives it receipts;
        `most_bytes`: of what a component may publish.
        """
        self.inbox = Inbox()
        self.counts = CarriedCounts()
        self._ties, self._channels, self._append = ties, channels, append
        self._collector, self._confirm = collector, confirm
        self._room = most_bytes - _BESIDE
        self._receipts: dict[str, Receipt] = {}
        """Of devices heard last, last."""
        self._told: frozenset[str] = frozenset()
        """Whose receipts the node's knowledge holds."""

    @property
    def sources(self) -> frozenset[str]:
        """The sources whose readings come so."""
        return frozenset(tie.source for tie in self._ties)

    def put(self, knowledge: Knowledge) -> None:
        """Hears of a version; whether it is a device's is looked at here."""
        if Carried.__name__ in knowledge.roles and self._tie(knowledge) is not None:
            self.inbox.put(knowledge)

    async def run(self) -> None:
        """Works until cancelled; first confirms what it had before."""
        self._receipts = await self._channels.look(_kept)
        self._tell()
        while True:
            await self.inbox.wait()
            versions = self.inbox.take_all()
            try:
                for one in versions:
                    await self.take(one)
            except BaseException:
                self.inbox.put_back(versions)
                raise

    async def take(self, knowledge: Knowledge) -> None:
        """Publishes what is new in a version."""
        tie, component = self._tie(knowledge), knowledge.component
        try:
            told = parse_device_knowledge(knowledge.values)
        except InvalidInput as error:
            self.counts.not_read += 1
            _log.warning("readings cannot be read", component=component, reason=error.message)
            return
        if tie is None or told.to not in ("", self._collector):
            return
        fresh = new_readings(told, self._receipts.get(component, Receipt()))
        if not fresh.readings:
            if told.readings:
                self._confirm_again(component)
            return
        await self._publish(
            tie.source,
            [
                Event(
                    source=tie.source,
                    id=reading_id(component, told.life, one.number),
                    type=TYPE,
                    subject=component,
                    time=one.time_ms,
                    data=_as_json(one.data),
                    headers={CARRIED: component},
                )
                for one in fresh.readings
            ],
        )
        self.counts.missing += fresh.missing
        await self._channels.apply([Put(_TABLE, component, msgspec.msgpack.encode(fresh.receipt))])
        self._keep_last(component, fresh.receipt)
        self._tell()

    async def _publish(self, source: str, events: list[Event]) -> None:
        """All of them, or one by one those that the channel takes; the others are buried."""
        channel = RAW_PREFIX + source
        try:
            appended = await self._append(channel, events)
        except InvalidInput as error:
            if len(events) > 1:
                for event in events:
                    await self._publish(source, [event])
                return
            self.counts.refused += 1
            await bury(
                self._channels, channel, "ensemble", StoredEvent(0, 0, events[0]), error, attempts=1
            )
            return
        self.counts.repeated += appended.duplicates
        self.counts.readings += len(events) - appended.duplicates

    def _confirm_again(self, component: str) -> None:
        """A device still says what is here: it did not hear so, and its receipt may have made room
        for those of others.
        """
        self._keep_last(component, self._receipts[component])
        if component not in self._told:
            self._tell()

    def _keep_last(self, component: str, receipt: Receipt) -> None:
        self._receipts.pop(component, None)
        self._receipts[component] = receipt

    def _tell(self) -> None:
        told = fitting(self._receipts, _PUBLISHED, self._room)
        self._told = frozenset(told)
        self._confirm(told)

    def _tie(self, knowledge: Knowledge) -> CarriedTie | None:
        return next((tie for tie in self._ties if tie.of.fits(knowledge)), None)


def fitting(receipts: dict[str, Receipt], most: int, room: int) -> dict[str, Receipt]:
    """The last of them, as many as may be published: with one too many none would be; pure."""
    told: dict[str, Receipt] = {}
    for name in islice(reversed(receipts), most):
        needed = len(msgspec.msgpack.encode((name, receipts[name])))
        if needed <= room:
            told[name] = receipts[name]
            room -= needed
    return dict(reversed(told.items()))


def collector_id(node: str) -> str:
    """The component that confirms what a node has."""
    return f"collector of {node}"[:200]


def _as_json(text: str) -> bytes:
    """What a device said; if it is not JSON, as a JSON text, which mediation holds back."""
    raw = text.encode("utf-8", "replace")
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.json.encode(raw.decode())
    return raw


def _kept(records: RecordStore) -> dict[str, Receipt]:
    found: dict[str, Receipt] = {}
    after = ""
    while page := records.find(_TABLE, after=after):
        for key, value in page:
            found[key] = msgspec.msgpack.decode(value, type=Receipt)
        after = page[-1][0]
    return found
