"""Strangers at real sockets: without the key nobody is heard, nobody gets more than they sent, and
no datagram does harm. [CX-2, CX-9]
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.context import protocol as m
from rapport.context.api import (
    ContextBroker,
    ContextConsumer,
    ContextGrant,
    ContextProvider,
    ContextRecord,
    ContextRights,
    EntityRef,
    load_keys,
)
from rapport.context.audit import AUDIT_CHANNEL, AuditLine
from rapport.context.protocol import (
    Command,
    Join,
    Message,
    Ping,
    Put,
    Question,
    Request,
    Watch,
    encode,
)
from rapport.context.v0.v0_state import V0Settings
from rapport.context.v0_endpoint import V0Endpoint
from rapport.core.errors import NotAllowed, RapportError
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.base import Address
from rapport.transport.fragments import WHOLE
from rapport.transport.keys import (
    DatagramKey,
    DatagramKeys,
    KeyFileWatch,
    add_key,
    make_key,
    retire_key,
    share_keys,
)
from rapport.transport.sealed_datagrams import Sealer, receiver_name
from support.processes.context import BrokerProcess
from support.processes.context_network import BrokerNetwork, resident_kib

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
ROOM = EntityRef("room", "r3")


def record(provider: str = "ana", values: int = 1) -> ContextRecord:
    now_ms = CLOCK.now_ms()
    return ContextRecord(provider, ROOM, "status", now_ms, now_ms + 60_000, {"n": values})


def every_message() -> list[Message]:
    return [
        Put(1, record()),
        Request(2, Question(ROOM, "status")),
        Ping(3),
        Join(4),
        Command(5, "leave"),
        Command(6, "status"),
        Watch(7, Question(ROOM, "status"), 60_000),
    ]


class Stranger:
    """A plain socket that counts what it sends and what comes back."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((host, 0))
        self.socket.setblocking(False)
        self.sent = 0

    def send(self, datagram: bytes, to: Address) -> None:
        try:
            self.sent += self.socket.sendto(datagram, to)
        except (BlockingIOError, ConnectionError):
            return  # as good as lost

    def received(self) -> list[bytes]:
        """All that came until now."""
        found = []
        while True:
            try:
                found.append(self.socket.recv(65_535))
            except BlockingIOError:
                return found


@contextmanager
def stranger(host: str = "127.0.0.1") -> Iterator[Stranger]:
    one = Stranger(host)
    try:
        yield one
    finally:
        one.socket.close()


def sealed(ring: DatagramKeys, message: Message, to: Address) -> bytes:
    seal = Sealer(ring, secrets.token_bytes(16))
    return seal.seal(WHOLE + encode(message), CLOCK.now_ms(), to=receiver_name(to))


def ring_of(key: DatagramKey) -> DatagramKeys:
    return DatagramKeys([key])


class Sealed:
    """The files of keys of a network with one client, ana."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "keys.toml"
        self.brokers, self.ana = make_key("brokers", "network"), make_key("ana", "client")
        add_key(self.file, self.brokers)
        add_key(self.file, self.ana)

    def broker(self, **options: object) -> BrokerProcess:
        return BrokerProcess(keys=self.file, **options)  # type: ignore[arg-type]


async def a_moment() -> None:
    await asyncio.sleep(0.4)


def test_without_a_valid_key_nothing_comes_back_and_nothing_changes(tmp_path: Path) -> None:
    keys, now_ms = Sealed(tmp_path), CLOCK.now_ms()
    ended = make_key("ana", "client", from_ms=1, until_ms=now_ms - 60_000)
    to_come = make_key("ana", "client", from_ms=now_ms + 600_000)
    retired = make_key("bob", "client")
    for key in (ended, to_come, retired):
        add_key(keys.file, key)
    retire_key(keys.file, retired.id, now_ms - 60_000)
    foreign = make_key("ana", "client")
    forged = DatagramKey(keys.ana.id, "ana", "client", foreign.secret)
    with keys.broker() as broker, stranger() as mallory:
        network = BrokerNetwork([broker], load_keys(keys.file))

        async def scenario() -> None:
            before = (await network.statuses())[0]
            for message in every_message():
                mallory.send(encode(message), broker.address)
                mallory.send(WHOLE + encode(message), broker.address)
                for key in (foreign, forged):
                    mallory.send(sealed(ring_of(key), message, broker.address), broker.address)
                for key in (ended, retired, to_come):
                    in_force = DatagramKey(key.id, key.owner, "client", key.secret)
                    mallory.send(sealed(ring_of(in_force), message, broker.address), broker.address)
                as_member = DatagramKey(keys.ana.id, "brokers", "network", keys.ana.secret)
                mallory.send(sealed(ring_of(as_member), message, broker.address), broker.address)
            await a_moment()
            assert mallory.received() == []
            after = (await network.statuses())[0]
            assert (after.records, after.neighbours, after.watches) == (0, (), 0)
            assert after.counters["datagrams_forged"] >= len(every_message())
            assert after.counters["datagrams_invalid_key"] >= 3 * len(every_message())
            opened = after.counters["datagrams_opened"] - before.counters["datagrams_opened"]
            assert opened <= 10  # what the test itself asked

        asyncio.run(scenario())


def test_a_recorded_datagram_is_heard_once_and_never_after_a_restart(tmp_path: Path) -> None:
    keys = Sealed(tmp_path)
    ana = ring_of(keys.ana)
    with keys.broker() as broker, stranger() as client, stranger("127.0.0.2") as victim:
        network = BrokerNetwork([broker], load_keys(keys.file))

        async def scenario() -> None:
            recorded = [sealed(ana, message, broker.address) for message in every_message()]
            for datagram in recorded:
                client.send(datagram, broker.address)
            await a_moment()
            assert len(client.received()) >= 4
            for datagram in recorded * 20:
                victim.send(datagram, broker.address)
            await a_moment()
            assert victim.received() == []
            after = (await network.statuses())[0]
            assert after.counters["datagrams_repeated"] >= 20 * len(recorded) - 5
            await network.kill(0)
            await network.restart(0)
            for datagram in recorded:
                victim.send(datagram, broker.address)
            await a_moment()
            assert victim.received() == []
            assert (await network.statuses())[0].records == 0

        asyncio.run(scenario())


def test_a_datagram_recorded_on_its_way_to_one_broker_is_not_heard_by_another(
    tmp_path: Path,
) -> None:
    """Else each broker would answer it once more, to whatever address the sender wrote on it."""
    keys = Sealed(tmp_path)
    ana = ring_of(keys.ana)
    with keys.broker() as one, keys.broker() as other, stranger() as client, stranger() as victim:

        async def scenario() -> None:
            recorded = [sealed(ana, message, one.address) for message in every_message()]
            for datagram in recorded:
                client.send(datagram, one.address)
                victim.send(datagram, other.address)
            await a_moment()
            assert len(client.received()) >= 4
            assert victim.received() == []

        asyncio.run(scenario())


# Floods of nonsense


def nonsense(chance: Chance, messages: list[bytes]) -> bytes:
    """Random bytes, or a message with some of its bytes changed, cut or doubled."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randrange(1, 200))
    data = bytearray(chance.choice(messages))
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                data = data[: place + 1]
            case 2:
                data[place:place] = data[: chance.randrange(1, 20)]
            case _:
                data[place] ^= 1 << chance.randrange(8)
    return bytes(data)


async def flood(
    who: Stranger, to: Address, broker: BrokerProcess, messages: list[bytes], count: int
) -> None:
    """So fast that the broker can just hear it: what the kernel drops tests nothing."""
    chance = Chance(count)
    for number in range(count):
        who.send(nonsense(chance, messages), to)
        if number % 100 == 99:
            who.received()
            await asyncio.sleep(0.01)
            assert broker.is_running(), "".join(broker.told[-20:])


def words_of_v1() -> list[bytes]:
    """All kinds of messages, as brokers and clients send them; without seals they are read."""
    path = (("127.0.0.1", 9), ("127.0.0.1", 7), ("nowhere", 99))
    question, place = Question(ROOM, "status"), ("127.0.0.1", 9)
    more = [
        m.Ask(1, 1, 1, question, path, 500, 5),
        m.Ask(2, 1, 1, question, path, 500, 5, "flood"),
        m.FoundRecord(1, 1, 1, record(), path, (1,), place),
        m.SearchRefusal(1, 1, 1, path),
        m.HopAck(1, 1, 1, "ask"),
        m.Probe(1, 1, 1, question, 1, place),
        m.Have(1, 1, 1, record(), place),
        m.Pong(1, 0.5, b"filter"),
        m.Welcome(1, True, (place,)),
        m.Departure(1, place, 2),
        m.Command(1, "join", (place,)),
        m.Unwatch(1),
        m.Notice(1, 1, record()),
        m.NoticeAck(1, 1),
        m.Invalidation(1, ("p", "room", "r3", "status"), 5, 2),
        m.Status(1, 102),
        m.Answer(1, record()),
    ]
    return [WHOLE + encode(message) for message in [*every_message(), *more]]


WORDS_OF_V0 = [
    b"0|1516060800000",
    b"1|1516060800000",
    b"2|1516060800000|25|A|p1|room|r3|status|1516060800000|4516060860000|free=yes;temperature=21.5",
    b"3|1516060800000|room|r3|status",
    b"3|1516060800000|room|r3|status|10.0.0.7|51234|10.0.0.1|7410",
    b"4|1516060800000|25|p1|room|r3|status|1516060800000|4516060860000|free=yes;temperature=21.5"
    b"|10.0.0.7|51234|*|10.0.0.1|7410|10.0.0.2|7410|*",
    b"5|1516060800000|ACK|Status:101|Operation Ping|Requested by 10.0.0.7",
    b"6|1516060800000|NACK|Status:202|Operation Context Request|Requested by 10.0.0.7"
    b"|10.0.0.7|51234",
    b"7|1516060800000|*",
    b"8|1516060800000|127.0.0.1|127.0.0.2:7500",
    b"9|1516060800000|Ctx_Broker|10.0.0.1",
]
ROUNDS = [3_000, pytest.param(100_000, marks=pytest.mark.long)]


@pytest.mark.parametrize("count", ROUNDS)
def test_nonsense_neither_ends_nor_fills_a_broker(count: int, tmp_path: Path) -> None:
    keys = Sealed(tmp_path)
    plain_door = free_port()
    with (
        keys.broker() as sealed_one,
        BrokerProcess(options=("--v0", f"127.0.0.1:{plain_door}")) as open_one,
        stranger() as mallory,
    ):

        async def scenario() -> None:
            ana = ring_of(keys.ana)
            words = words_of_v1()
            sealed_words = [
                Sealer(ana, secrets.token_bytes(16)).seal(
                    word, CLOCK.now_ms(), to=receiver_name(sealed_one.address)
                )
                for word in words
            ]
            doors = [
                (sealed_one, sealed_one.address, sealed_words),
                (open_one, open_one.address, words),
                (open_one, ("127.0.0.1", plain_door), WORDS_OF_V0),
            ]
            for broker, address, _ in doors:
                await flood(mallory, address, broker, words, 200)
            before = {one.pid: resident_kib(one.pid) for one in (sealed_one, open_one)}
            for broker, address, known in doors:
                await flood(mallory, address, broker, known, count)
            await a_moment()
            grown = {pid: resident_kib(pid) - kib for pid, kib in before.items()}
            print(f"\n{count} datagrams at each of three doors: resident kB grew by {grown}")
            assert max(grown.values()) < 65_536, grown
            heard = await heard_by(open_one, None) + await heard_by(
                sealed_one, load_keys(keys.file)
            )
            assert heard > count, heard
            await still_serves(open_one, None)
            await still_serves(sealed_one, ana)
            assert not any(
                "Traceback" in line for one in (sealed_one, open_one) for line in one.told
            )

        asyncio.run(scenario())


async def heard_by(broker: BrokerProcess, ring: DatagramKeys | None) -> int:
    """Datagrams that the kernel did not drop, whatever the broker thought of them."""
    counters = (await BrokerNetwork([broker], ring).statuses())[0].counters
    names = ("foreign", "unknown_key", "wrong_side", "repeated", "forged", "opened")
    return counters["messages_received"] + sum(
        counters.get(f"datagrams_{name}", 0) for name in names
    )


async def still_serves(broker: BrokerProcess, keys: DatagramKeys | None) -> None:
    provider = await ContextProvider.open([broker.address], name="ana", keys=keys)
    consumer = await ContextConsumer.open([broker.address], keys=keys)
    async with provider, consumer:
        await provider.update("room/after", "status", {"n": 1}, valid_for_ms=60_000)
        located = await consumer.request("room/after", "status")
        assert located.record.values == {"n": 1}


def free_port() -> int:
    with stranger() as one:
        return int(one.socket.getsockname()[1])


# Forged senders


def test_a_stranger_to_v0_is_never_told_more_than_it_sent() -> None:
    async def scenario() -> None:
        broker = await ContextBroker.open(("127.0.0.1", 0), clock=CLOCK, chance=Chance(1))
        settings = V0Settings(clients=("127.0.0.9",), brokers=(), controllers=())
        door = await V0Endpoint.open(
            ("127.0.0.1", 0),
            broker,
            clock=CLOCK,
            chance=Chance(2),
            allows=lambda *_: True,
            settings=settings,
        )
        long = {"text": "x" * 1_000}
        now_ms = CLOCK.now_ms()
        await broker.put(ContextRecord("p1", ROOM, "status", now_ms, now_ms + 60_000, long))
        with stranger("127.0.0.7") as forged, stranger("127.0.0.9") as named:
            chance = Chance(3)
            for number in range(2_000):
                word = chance.choice(WORDS_OF_V0)
                forged.send(word if number % 2 else nonsense(chance, WORDS_OF_V0), door.address)
                if number % 50 == 49:
                    await asyncio.sleep(0.01)
            await a_moment()
            told = sum(map(len, forged.received()))
            assert told <= forged.sent, (told, forged.sent)
            assert broker.status().records == 1
            named.send(b"3|1516060800000|room|r3|status", door.address)
            await a_moment()
            assert sum(map(len, named.received())) > 1_000
        await door.close()
        await broker.close()

    asyncio.run(scenario())


# Rights, audit, rotation


def test_what_an_identity_may_not_is_refused_and_in_the_audit_log(tmp_path: Path) -> None:
    ana, bob, brokers = (
        make_key("ana", "client"),
        make_key("bob", "client"),
        make_key("brokers", "network"),
    )
    rights = ContextRights(
        {
            "ana": ContextGrant(read=("*",), write=("room/* status",)),
            "bob": ContextGrant(read=("room/* status",)),
        }
    )

    async def refused(work: object) -> None:
        with pytest.raises(NotAllowed) as error:
            await work  # type: ignore[misc]
        assert error.value.code == "context.not_allowed"

    async def scenario() -> list[AuditLine]:
        channels = open_embedded(tmp_path, CLOCK)
        broker = await ContextBroker.open(
            ("127.0.0.1", 0),
            clock=CLOCK,
            chance=Chance(1),
            keys=DatagramKeys([brokers, ana, bob]),
            channels=channels,
            rights=rights,
        )
        at = [broker.address]
        writer = await ContextProvider.open(at, keys=ring_of(ana))
        intruder = await ContextProvider.open(at, keys=ring_of(bob))
        reader = await ContextConsumer.open(at, keys=ring_of(bob))
        async with writer, intruder, reader:
            await writer.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
            assert (await reader.request("room/r3", "status")).record.values == {"n": 1}
            await refused(writer.update("car/7", "status", {"n": 1}, valid_for_ms=60_000))
            await refused(writer.update("room/r3", "plan", {"n": 1}, valid_for_ms=60_000))
            await refused(intruder.update("room/r3", "status", {"n": 2}, valid_for_ms=60_000))
            await refused(reader.request("room/r3", "plan"))
            await refused(reader.request("car/7", "status"))
            assert (await reader.request("room/r3", "status")).record.values == {"n": 1}
        await broker.close()
        stored = await channels.channel(AUDIT_CHANNEL).read_after(0)
        await channels.close()
        return [msgspec.json.decode(one.event.data, type=AuditLine) for one in stored]

    lines = asyncio.run(scenario())
    kinds = {(line.identity, line.what, line.status) for line in lines}
    assert {("ana", "write", 0), ("bob", "refused", 401), ("ana", "refused", 401)} <= kinds, lines
    refusals = [line for line in lines if line.what == "refused"]
    assert sum(line.count for line in refusals) == 5, refusals
    assert all(line.address.startswith("127.0.0.1:") for line in refusals), refusals


def test_keys_are_exchanged_under_load_and_no_request_fails(tmp_path: Path) -> None:
    keys = Sealed(tmp_path)
    shared = tmp_path / "ana.toml"
    share_keys(keys.file, "ana", shared)
    watch = KeyFileWatch(shared)
    with keys.broker() as one, keys.broker(join=(one.address,)) as other:
        network = BrokerNetwork([one, other], load_keys(keys.file))

        async def scenario() -> tuple[int, list[str]]:
            await network.until_joined(at_least=1)
            provider = await ContextProvider.open([one.address], keys=watch.keys)
            consumer = await ContextConsumer.open([other.address], keys=watch.keys)
            answered, failed, over = 0, list[str](), False

            async def ask() -> None:
                nonlocal answered
                while not over:
                    try:
                        name = f"room/{answered % 50}"
                        await provider.update(name, "status", {"n": 1}, valid_for_ms=1_000)
                        await consumer.request(name, "status")
                        answered += 1
                    except RapportError as error:
                        failed.append(f"{error.code}: {error.message}")
                    await asyncio.sleep(0.01)

            async with provider, consumer:
                asking = asyncio.create_task(ask())
                # By the rule of the hand-book: everybody has the new keys before they seal.
                from_ms = CLOCK.now_ms() + 3_000
                for owner, kind in (("brokers", "network"), ("ana", "client")):
                    add_key(keys.file, make_key(owner, kind, from_ms=from_ms))
                shared.unlink()
                share_keys(keys.file, "ana", shared)
                assert watch.refresh()
                await until_told(one, other, times=1)
                await CLOCK.sleep(max(from_ms + 500 - CLOCK.now_ms(), 0))
                for key in (keys.brokers, keys.ana):
                    retire_key(keys.file, key.id, CLOCK.now_ms())
                await until_told(one, other, times=2)
                await asyncio.sleep(1)
                over = True
                await asking
            return answered, failed

        answered, failed = asyncio.run(scenario())
    assert failed == []
    assert answered > 50


async def until_told(*brokers: BrokerProcess, times: int) -> None:
    """Waits until all took up the changed keys; at most two changes in one look."""
    for _ in range(200):
        if all(sum("changed keys" in line for line in one.told) >= times for one in brokers):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the keys were not taken up")
