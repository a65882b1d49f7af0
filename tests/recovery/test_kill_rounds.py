"""A node killed in the midst of publishers and readers of every kind: nothing acknowledged is lost
or doubled, for the log and for each of them, wherever the log is kept. [CH-3,
CH-5, CH-6, CH-7, CH-9, CH-13]
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from rapport.channel.backends.stores import open_channels, open_reading
from rapport.channel.config import ChannelsConfig, channels_from_site
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Chance, SystemClock
from rapport.kernel.toml import TomlFile
from support.faults.crowd import (
    CHANNEL,
    ListeningProgram,
    OutboxUser,
    PlainUser,
    SocketReader,
    TokenReader,
)
from support.faults.network import Network
from support.faults.rounds import at_work, check_once, check_same, few_or_many, wait_until
from support.processes.node import NodeProcess
from support.servers.postgres import PostgresAddress

pytestmark = pytest.mark.slow

NODE = Path(__file__).with_name("reading_node.py")
READER, RESULTS = "adder", "results"
SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'


class Crowd:
    """Everybody who uses the node, and what the log must say because of them."""

    def __init__(self, url: str, directory: Path, chance: Chance) -> None:
        seeds = [Chance(chance.randint(0, 2**30)) for _ in range(6)]
        self.outboxes = [
            OutboxUser(f"o{n}", url, directory / f"outbox{n}", seeds[n]) for n in range(2)
        ]
        self.plain = [PlainUser(f"p{n}", url, seeds[2 + n]) for n in range(2)]
        self.by_token = TokenReader(url, directory / "sets.jsonl", seeds[4])
        self.sockets = [SocketReader(url, "token"), SocketReader(url, "position")]
        self.listening = ListeningProgram(url, directory / "place")

    @property
    def publishers(self):
        return [*self.outboxes, *self.plain]

    @property
    def readers(self):
        return [self.by_token, *self.sockets, self.listening]

    def acknowledged(self) -> int:
        """By the node itself; an outbox accepts while there is none."""
        return sum(len(one.acknowledged) for one in self.plain)

    def check(self, written: list[str]) -> None:
        """After a kill: what a plain publisher was told is there, nobody has read anything else."""
        for one in self.plain:
            check_once(written, one.acknowledged)
        for reader in self.readers:
            check_same(reader.found, written)

    def has_read(self, count: int) -> bool:
        return all(len(reader.found) >= count for reader in self.readers)


def written_in(site: Path, channel: str) -> list[StoredEvent]:
    """All events of a channel, read beside the node or without it."""

    async def read() -> list[StoredEvent]:
        channels = open_reading(
            site / ".rapport" / "log", SystemClock(), declared_in(site), site=site
        )
        try:
            found: list[StoredEvent] = []
            while batch := await channels.channel(channel).read_after(len(found), limit=10_000):
                found += batch
            return found
        finally:
            await channels.close()

    return asyncio.run(read())


def declared_in(site: Path) -> ChannelsConfig:
    declared, _problems = channels_from_site(TomlFile.load(site / "site.toml"))
    return declared


def ids_in(site: Path, channel: str = CHANNEL) -> list[str]:
    stored = written_in(site, channel)
    assert [one.position for one in stored] == list(range(1, len(stored) + 1))
    return [one.event.id for one in stored]


def results_in(site: Path) -> list[str]:
    return [one.event.payload()["of"] for one in written_in(site, RESULTS)]


async def state_of_the_reader(site: Path) -> tuple[int, list[int]]:
    log = site / ".rapport" / "log"
    channels = open_channels(
        log, SystemClock(), declared_in(site), site=site, segment_bytes=1_000_000
    )
    subscription = await channels.subscribe(CHANNEL, READER)
    await channels.close()
    return subscription.position, json.loads(subscription.state)


def play(node: NodeProcess, crowd: Crowd, site: Path, rounds: int, chance: Chance) -> None:
    """Kill after kill, with a look at the disk after each."""
    for _round in range(rounds):
        enough = crowd.acknowledged() + chance.randint(1, 60)
        assert wait_until(lambda least=enough: crowd.acknowledged() >= least)
        assert node.kill() == -signal.SIGKILL
        crowd.check(ids_in(site))
        check_same(results_in(site), ids_in(site))
        node.start()


@pytest.mark.parametrize("rounds", few_or_many(3))
def test_kills_under_load_lose_and_double_nothing_for_anybody(tmp_path: Path, rounds: int) -> None:
    run_rounds(tmp_path, "", rounds)


@pytest.mark.parametrize("rounds", few_or_many(2))
def test_kills_under_load_lose_and_double_nothing_on_nats(
    tmp_path: Path, rounds: int, nats_address: str
) -> None:
    (tmp_path / "nats").write_text(nats_address)
    run_rounds(tmp_path, '[channels]\nlog = "nats"\nnats = "file:../nats"\n', rounds)


@pytest.mark.parametrize("rounds", few_or_many(2))
def test_kills_under_load_lose_and_double_nothing_on_postgres(
    tmp_path: Path, rounds: int, postgres: PostgresAddress
) -> None:
    (tmp_path / "postgres").write_text(f"{postgres.dsn}#{postgres.schema}")
    keeping = '[channels]\nlog = "postgres"\nrecords = "postgres"\n'
    run_rounds(tmp_path, f'{keeping}postgres = "file:../postgres"\n', rounds)


def run_rounds(tmp_path: Path, keeping: str, rounds: int) -> None:
    """`keeping` is what the site says about where its channels are."""
    site, chance = tmp_path / "site", Chance(20261115 + rounds)
    site.mkdir()
    (site / "site.toml").write_text(SITE + keeping)
    with NodeProcess(site, program=NODE) as node:
        node.start()
        network = Network(node)
        crowd = Crowd(network.url, tmp_path, chance)
        with at_work(*crowd.readers):
            with at_work(*crowd.publishers):
                play(node, crowd, site, rounds, chance)
            for one in crowd.outboxes:
                assert one.publisher.close(wait=30)
            written = ids_in(site)
            assert wait_until(lambda: crowd.has_read(len(written)))
            assert wait_until(lambda: len(results_in(site)) >= len(written), every=0.3)
        network.close()
        node.kill()
    for publisher in crowd.publishers:
        check_once(written, publisher.acknowledged)
    for reader in crowd.readers:
        assert reader.found == written
    assert results_in(site) == written
    position, state = asyncio.run(state_of_the_reader(site))
    assert state == [position, position * (position + 1) // 2]
    assert crowd.by_token.compared > rounds / 4
    assert crowd.by_token.crashes > rounds / 4
    print(f"{rounds} kills, {len(written)} events, {crowd.by_token.compared} sets asked again")
