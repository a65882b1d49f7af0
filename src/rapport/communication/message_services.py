"""The services around messages, as a node starts them: routing, message query, message info.
[CO-6, CO-13, CO-14]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rapport.channel.channel import Channels
from rapport.communication.config import ServicesConfig
from rapport.communication.message_info_service import InfoResponder, MessageInfoService, Send
from rapport.communication.message_query import MessageQueries
from rapport.communication.routing import RoutingRecords
from rapport.kernel.clock import Clock
from rapport.store.base import RecordStore


class MessageServices:
    """`routing`, `queries` and `infos` of one node."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        declared: ServicesConfig,
        *,
        send: Send | None = None,
    ) -> None:
        """`send`: how replies to MESSAGEINFO REQUESTs are sent; None: they are not answered."""
        self.routing = RoutingRecords(channels, records, clock, of_site=declared.rules)
        self.queries = MessageQueries(channels, clock)
        self.infos = MessageInfoService(channels, records, clock, of_site=declared.information)
        self._answers = InfoResponder(channels, self.infos, send) if send is not None else None

    async def open(self) -> None:
        """Loads what was added at run time; before the engine begins."""
        await self.routing.open()
        await self.infos.open()

    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The background tasks by name; each may be started again after a failure."""
        return {} if self._answers is None else {"message info": self._answers.run}
