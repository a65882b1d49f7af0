"""The message query service where the log and the records are PostgreSQL's."""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.config import ChannelsConfig
from rapport.communication.message_query import MessageQueries, with_log_index
from rapport.communication.routing import RoutingRecords, RoutingRule
from rapport.core.event import make_event
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock
from support.servers.postgres import PostgresAddress, postgres, postgres_server  # noqa: F401
from support.servers.postgres_channels import open_postgres

pytestmark = pytest.mark.slow
ANA, BEN = Identifier("peer", "ana"), Identifier("peer", "ben")


def test_queries_and_rules_work_on_postgres(
    postgres: PostgresAddress,  # noqa: F811
    clock: ManualClock,
) -> None:
    async def scenario() -> None:
        channels = open_postgres(postgres.dsn, clock, schema=postgres.schema)
        channels.use_rules(with_log_index(ChannelsConfig()))
        events = []
        for number in range(40):
            message = Message(
                id=f"m{number}",
                type="TASK",
                subtype="REQUEST",
                sender=(ANA, BEN)[number % 2],
                receiver=(BEN, ANA)[number % 2],
                conversation=f"c{number % 4}",
                content=f"Check Pump {number}",
            )
            events.append(message.to_event(source="x", time=number, fate="queued"))
            line = {"message": message.id, "result": "done" if number % 3 else "failed"}
            events.append(
                make_event(
                    source="x",
                    id=f"l{number}",
                    type="rapport.delivery.closed",
                    subject=message.id,
                    time=number,
                    data=line,
                )
            )
        await channels.channel("log").append(events)
        queries = MessageQueries(channels, clock)

        async def found(**criteria: object) -> list[str]:
            asked = queries.create_query(**criteria)  # type: ignore[arg-type]
            return [each.message.id async for each in asked]

        assert await found(conversation="c3", limit=3) == [f"m{n}" for n in range(3, 40, 4)]
        assert await found(sender="ana", newest_first=True, limit=7) == [
            f"m{n}" for n in range(38, -1, -2)
        ]
        assert await found(receiver="ben", contains="pump 1", fate="failed") == ["m12", "m18"]
        assert await found(id="m7") == ["m7"]

        one, other = (RoutingRecords(channels, channels.records, clock) for _ in range(2))
        await one.open()
        await other.open()
        await one.add(RoutingRule(type="TASK", to=(BEN,)))
        assert await asyncio.to_thread(other.refresh)
        assert other.recipients(Message(type="TASK", subtype="", sender=ANA)) == (BEN,)
        await channels.close()

    asyncio.run(scenario())
