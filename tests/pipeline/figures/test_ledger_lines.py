"""The event of an answer stands for the ledger's line about it, on Spark as on the node. [CO-18]"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.ledger import Ledger
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.pipeline.figures.definitions import FACTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

HANDED = {"message": "m1", "peer": "ana", "address": "mail:a", "adapter": "mail", "attempt": 1}
SAID: list[tuple[str, str, dict[str, Any]]] = [
    (
        "m1",
        "rapport.message",
        {
            "id": "m1",
            "type": "NOTE", "subtype": "", "sender": "component:x", "receiver": "peer:ana",
            "fate": "queued", "peer": "ana", "address": "mail:a", "adapter": "mail",
        },
    ),
    ("m1.ana.handed", "rapport.delivery.handed", HANDED | {"result": "done", "queued": 1_000}),
    (
        "r1",
        "rapport.message",
        {
            "id": "r1",
            "type": "REPLY", "subtype": "", "sender": "peer:ana", "receiver": "component:x",
            "refers-to": "m1", "content": "no", "fate": "notified", "answered": 3_000,
            "declined": True,
        },
    ),
]  # fmt: skip


def test_an_answer_is_counted_for_the_message_it_refers_to(spark: SparkSession) -> None:
    rows = [
        (id, kind, "m1", 1_000 + number, number, json.dumps(data))
        for number, (id, kind, data) in enumerate(SAID, start=1)
    ]
    log = spark.createDataFrame(
        rows, "id STRING, type STRING, subject STRING, time BIGINT, position BIGINT, data STRING"
    )
    (sql,) = (fact.sql for fact in FACTS if fact.name == "ledger")
    found = spark.sql(sql, rows=log).orderBy("position").collect()
    assert [(one.message, one.peer, one.state, one.time, one.attempt) for one in found] == [
        ("m1", "ana", "queued", 1_001, 1),
        ("m1", "ana", "handed", 1_002, 1),
        ("m1", "ana", "answered", 3_000, 0),
    ]


def test_the_node_reads_the_same() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock(5_000))
        events = [
            Event("communication", id, kind, "m1", 1_000, json.dumps(data).encode())
            for id, kind, data in SAID
        ]
        await channels.channel("log").append(events)
        ledger = Ledger(channels)
        await ledger.refresh()
        (row,) = ledger.rows(message="m1", state="answered")
        assert (row.peer, row.answer, row.declined, row.time) == ("ana", "no", True, 3_000)
        states = [line.state for line in await ledger.timeline("m1")]
        assert states == ["written", "queued", "handed", "answered"]
        assert [line.state for line in await ledger.timeline("r1")] == ["written"]

    asyncio.run(scenario())
