"""A thin client of a Spark Connect server: no Java here, and the data stay there. [PI-11]

Questions to the lake and reports are asked through it. The server must see the lake's files
under the same paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rapport.pipeline.faults import spark_faults
from rapport.pipeline.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX = "spark.sql."
_servers: dict[str, str] = {}
_MOST_RETRIES, _LONGEST_PAUSE_MS = 6, 2_000


def connected_session(settings: SparkSettings) -> SparkSession:
    """A session on the server; raises Unavailable when it does not answer."""
    from pyspark.sql import SparkSession

    with spark_faults("reaching the Spark Connect server"):
        session = SparkSession.builder.remote(settings.master).getOrCreate()
        _be_less_patient(session)
        for name, value in _options(settings).items():
            session.conf.set(name, value)
    _servers[str(session.session_id)] = settings.master
    return session


def connected_to(spark: SparkSession) -> str:
    """The address of a thin client's server; "" for a session with a Spark of its own."""
    if not type(spark).__module__.startswith("pyspark.sql.connect."):
        return ""
    return _servers.get(str(spark.session_id), "sc://")


def as_question(sql: str) -> str:
    """A text as the inner part of a SELECT: a server carries out commands as soon as they are
    given, and within a SELECT nothing else can be said.
    """
    return f"SELECT * FROM (\n{sql}\n)"


def _be_less_patient(session: SparkSession) -> None:
    """A server that has gone is told after seconds; by itself the client would try for minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    quick = DefaultPolicy(max_retries=_MOST_RETRIES, max_backoff=_LONGEST_PAUSE_MS)
    session.client.set_retry_policies([quick])


def _options(settings: SparkSettings) -> dict[str, str]:
    """What a client may set: the rest is for whoever runs the server."""
    own = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    }
    given = msgspec.structs.asdict(settings)["options"]
    return own | {name: value for name, value in given.items() if name.startswith(_PREFIX)}
