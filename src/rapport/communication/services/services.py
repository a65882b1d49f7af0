"""The services around messages, as a node starts them: routing, message query, message info.
[CO-6, CO-13, CO-14]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.services.info import Kind, MessageInformation
from rapport.communication.services.info_records import MessageInfoService
from rapport.communication.services.info_service import InfoAnswers, Send
from rapport.communication.services.info_site import info_from_site
from rapport.communication.services.query import MessageQueries
from rapport.communication.services.routing import RoutingRule
from rapport.communication.services.routing_records import RoutingRecords
from rapport.communication.services.routing_site import routing_from_site
from rapport.core.errors import Problem
from rapport.kernel.clock import Clock
from rapport.kernel.toml import TomlFile
from rapport.store.base import RecordStore


class ServicesDeclared(msgspec.Struct, frozen=True, kw_only=True):
    """What a site says in `[[routing]]` and `[messages]`."""

    rules: tuple[RoutingRule, ...] = ()
    information: dict[Kind, MessageInformation] = {}


def services_from_site(
    file: TomlFile, directory: Path, *, peers: Collection[str], collectives: Collection[str]
) -> tuple[ServicesDeclared, list[Problem]]:
    """What the site says of routing and of messages, and all its problems."""
    rules, wrong_rules = routing_from_site(file, peers=peers, collectives=collectives)
    information, wrong_information = info_from_site(file, directory)
    declared = ServicesDeclared(rules=rules, information=information)
    return declared, [*wrong_rules, *wrong_information]


class MessageServices:
    """`routing`, `queries` and `infos` of one node."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        declared: ServicesDeclared,
        *,
        send: Send | None = None,
    ) -> None:
        """`send`: how replies to MESSAGEINFO REQUESTs are sent; None: they are not answered."""
        self.routing = RoutingRecords(channels, records, clock, of_site=declared.rules)
        self.queries = MessageQueries(channels, clock)
        self.infos = MessageInfoService(channels, records, clock, of_site=declared.information)
        self._answers = InfoAnswers(channels, self.infos, send) if send is not None else None

    async def open(self) -> None:
        """Loads what was added at run time; before the engine begins."""
        await self.routing.open()
        await self.infos.open()

    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The background tasks by name; each may be started again after a failure."""
        return {} if self._answers is None else {"message info": self._answers.run}
