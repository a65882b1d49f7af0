"""Where the suites of the channel run: every back end, opened again and again. [CH-13]"""

from __future__ import annotations

import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.backends.stores import open_channels
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.kernel.clock import ManualClock
from support.servers.nats import nats_address, nats_prefix, nats_server  # noqa: F401
from support.servers.postgres import postgres, postgres_server  # noqa: F401
from support.servers.postgres_channels import open_postgres


class MemoryPlace:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def open(self):
        return open_memory(self.clock)


class EmbeddedPlace:
    def __init__(self, clock: ManualClock, directory) -> None:
        self.clock, self._directory = clock, directory

    def open(self):
        return open_embedded(self._directory / "deep" / "down", self.clock, segment_bytes=20_000)


class PostgresPlace:
    def __init__(self, clock: ManualClock, address) -> None:
        self.clock, self._address = clock, address

    def open(self):
        return open_postgres(self._address.dsn, self.clock, schema=self._address.schema)


class NatsPlace:
    """Logs in NATS, the rest in the directory, as a site says it."""

    def __init__(self, clock: ManualClock, directory, address: str) -> None:
        self.clock, self._directory = clock, directory
        (directory / "nats-address").write_text(address)

    def open(self):
        declared = ChannelsConfig(nats="file:nats-address", common=ChannelRules(log="nats"))
        data, site = self._directory / "data" / "log", self._directory
        return open_channels(data, self.clock, declared, site=site, segment_bytes=20_000)


@pytest.fixture(
    params=[
        "memory",
        "embedded",
        pytest.param("postgres", marks=pytest.mark.slow),
        pytest.param("nats", marks=pytest.mark.slow),
    ]
)
def channel_place(request, clock, tmp_path):
    places = {
        "memory": lambda: MemoryPlace(clock),
        "embedded": lambda: EmbeddedPlace(clock, tmp_path),
        "postgres": lambda: PostgresPlace(clock, request.getfixturevalue("postgres")),
        "nats": lambda: NatsPlace(clock, tmp_path, request.getfixturevalue("nats_address")),
    }
    return places[request.param]()
