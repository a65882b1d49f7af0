"""What providers, consumers and controllers may do, and what they are told."""

from __future__ import annotations

import math

import pytest

from rapport.context.broker.broker_machine import CLIENTS_MAY, BrokerMachine
from rapport.context.broker.broker_settings import BrokerLimits, BrokerSettings
from rapport.context.broker.broker_state import AuditEffect, StoreRecord
from rapport.context.protocol import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    PROCESSED,
    RECEIVED,
    TOO_BUSY,
    Answer,
    Ask,
    Command,
    FoundRecord,
    Have,
    HopAck,
    Join,
    Ping,
    Pong,
    Put,
    Question,
    Request,
    SearchRefusal,
    Status,
)
from rapport.context.records import TableLimits
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Sender
from rapport_lab.topology import from_edges, ring

HERE, CLIENT, OTHER = ("b", 1), ("c", 9), ("b", 2)
ROOM = EntityRef("room", "r1")
QUESTION = Question(ROOM, "status")
NOW = Now(1_000_000, 50.0)


def record(start: int = 999_000, end: int = 2_000_000, **values: object) -> ContextRecord:
    return ContextRecord("p", ROOM, "status", start, end, dict(values))


def machine(allows=None, **settings: object) -> BrokerMachine:
    given = {} if allows is None else {"allows": allows}
    return BrokerMachine(HERE, BrokerSettings(**settings), Chance(1), **given)


def say(broker: BrokerMachine, message, now: Now = NOW, **sender) -> list:
    broker.handle(message, Sender(CLIENT, **{"identity": "x", "kind": "client", **sender}), now)
    said = [one for one, to in broker.outbox if to == CLIENT]
    broker.outbox.clear()
    return said


def test_a_provider_hears_101_and_102() -> None:
    assert say(machine(), Put(5, record())) == [Status(5, RECEIVED), Status(5, PROCESSED)]


def test_102_waits_for_the_disk_where_updates_are_kept() -> None:
    broker = machine(durable=True)
    assert say(broker, Put(5, record())) == [Status(5, RECEIVED)]
    (kept,) = broker.effects
    assert kept == StoreRecord(kept.token, record(), "x")
    assert say(broker, Put(5, record())) == [Status(5, RECEIVED)], "repeated: not kept twice"
    assert len(broker.effects) == 1
    broker.kept(kept.token, NOW)
    assert broker.outbox == [(Status(5, PROCESSED), CLIENT)]
    broker.outbox.clear()
    broker.kept(kept.token, NOW)
    assert broker.outbox == [], "told once"
    assert say(broker, Put(5, record())) == [Status(5, RECEIVED)]
    broker.kept(broker.effects[-1].token, NOW)
    assert broker.outbox == [(Status(5, PROCESSED), CLIENT)], "the log knows it, and says so"


def test_an_update_that_came_late_is_history_and_kept_as_well() -> None:
    broker = machine(durable=True)
    say(broker, Put(5, record(999_000)))
    say(broker, Put(6, record(998_000)))
    assert [one.record.valid_from for one in broker.effects] == [999_000, 998_000]
    assert broker.table.own_records == 1


def test_a_restarted_client_that_counts_anew_gets_no_answer_to_an_older_question(
    network, brokers
) -> None:
    names = brokers(4)
    net = network(ring(names))
    for name in ("r1", "r2"):
        net.put(names[2], name)
    sender = Sender(("again", 1), "", "client")
    for name in ("r1", "r2"):
        net.deliver(Request(1, net.question(name)), sender, names[0])
        net.run(300)
    answers = [one for one, _ in net.inbox["again", 1]]
    assert [one.record.entity.id for one in answers] == ["r1", "r2"]


def test_a_disk_that_fails_is_an_internal_error() -> None:
    broker = machine(durable=True)
    say(broker, Put(5, record()))
    broker.not_kept(broker.effects[0].token, "disk full", NOW)
    assert broker.outbox == [(Status(5, INTERNAL_ERROR, "disk full"), CLIENT)]
    broker.outbox.clear()
    assert say(broker, Put(6, record())) == [Status(6, RECEIVED)], "it is not on disk yet"


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (record(2_000_000, 1_000), BAD_REQUEST),
        (record(1, 2), BAD_REQUEST),
    ],
)
def test_a_record_without_validity_is_a_bad_request(given: ContextRecord, status: int) -> None:
    (said,) = say(machine(), Put(5, given))
    assert said.status == status
    assert said.why


def test_a_full_table_and_a_slow_disk_say_too_busy() -> None:
    (said,) = say(machine(table=TableLimits(own_records=0)), Put(5, record()))
    assert said.status == TOO_BUSY
    broker = machine(durable=True, limits=BrokerLimits(keeping=1))
    say(broker, Put(5, record()))
    (said,) = say(broker, Put(6, record(999_001)))
    assert said.status == TOO_BUSY


def test_an_answer_from_the_table_leaves_nothing_behind() -> None:
    broker = machine()
    say(broker, Put(5, record(open=True)))
    assert say(broker, Request(6, QUESTION)) == [Answer(6, record(open=True))]
    assert broker.next_due_ms() is None or broker.next_due_ms() > NOW.steady_ms + 900
    assert broker.status().searches == 0


def test_rights_are_asked_for_every_operation() -> None:
    asked = []

    def allows(identity, right, entity, scope) -> bool:
        asked.append((identity, right, entity, scope))
        return False

    broker = machine(allows, audits=True)
    for message in (Put(1, record()), Request(2, QUESTION), Command(3, "leave")):
        (said,) = say(broker, message)
        assert said.status == NOT_ALLOWED
        assert said.id == message.id
    assert asked == [
        ("x", "write", ROOM, "status"),
        ("x", "read", ROOM, "status"),
        ("x", "control", None, ""),
    ]
    assert len(broker.table) == 0
    assert [one.status for one in broker.effects if isinstance(one, AuditEffect)] == [401] * 3


def test_every_operation_of_a_client_is_reported_to_the_audit() -> None:
    broker = machine(audits=True)
    say(broker, Put(1, record()))
    say(broker, Request(2, QUESTION))
    say(broker, Request(3, Question(ROOM, "other")))
    say(broker, Command(4, "monitor"))
    assert [(one.what, one.status) for one in broker.effects] == [
        ("put", PROCESSED),
        ("request", PROCESSED),
        ("request", NOT_FOUND),
        ("monitor", RECEIVED),
    ]


FOR_BROKERS = [
    Ask(1, 0, 1, QUESTION, (CLIENT, OTHER), 1_000, 5),
    FoundRecord(1, 0, 1, record(), (CLIENT,), (1,), OTHER),
    SearchRefusal(1, 0, 1, (CLIENT,)),
    HopAck(1, 0, 1, "ask"),
    Have(1, 0, 1, record(), OTHER),
    Join(1),
    Pong(1),
    Answer(1, record()),
    Status(1, 102),
]


@pytest.mark.parametrize("message", FOR_BROKERS, ids=lambda one: type(one).__name__)
def test_what_only_brokers_say_is_dropped_from_clients_and_counted(message) -> None:
    broker = machine()
    assert type(message) not in CLIENTS_MAY
    assert say(broker, message) == []
    assert broker.counts["not_for_clients"] == 1
    assert len(broker.table) == 0
    assert broker.neighbours == ()


def test_anybody_with_a_key_may_ping_and_learns_the_load() -> None:
    broker = machine()
    broker.busy = 0.25
    assert say(broker, Ping(4)) == [Pong(4, 0.25)]


def test_too_many_searches_are_refused_with_too_busy(network, brokers) -> None:
    names = brokers(4)
    limits = BrokerLimits(searches=2, searches_per_sender=2)
    net = network(ring(names), BrokerSettings(limits=limits))
    outcomes = [net.request(names[0], f"r{number}") for number in range(3)]
    net.run(1.5)
    assert outcomes[2].reply.status == TOO_BUSY
    assert net.machines[names[0]].load() == 1.0
    net.run(3_000)
    assert outcomes[0].reply.status == NOT_FOUND
    assert net.machines[names[0]].load() == 0.0


def test_the_broker_itself_asks_as_any_consumer(network, brokers) -> None:
    names = brokers(5)
    net = network(ring(names))
    given = net.put(names[2], "r1")
    ended: list = []
    for name, question in ((names[0], "r1"), (names[2], "r1"), (names[0], "nothing")):
        net.act(name, lambda m, q=question: m.ask(net.question(q), net.now, answer=ended.append))
    net.run(2_100)
    found = [one for one in ended if isinstance(one, FoundRecord)]
    (refused,) = [one for one in ended if isinstance(one, SearchRefusal)]
    assert [(one.record, one.holder) for one in found] == [(given, names[2])] * 2
    assert found[0].hops == 0
    assert found[1].hops in (2, 3), "one way round the ring or the other"
    assert refused.status == NOT_FOUND


def test_a_controller_is_notified_when_it_joined_and_when_not(network, brokers) -> None:
    names = brokers(3)
    net = network(from_edges([], nodes=names), adopt=False)
    controller = ("controller", 1)
    sender = Sender(controller, "", "client")
    net.deliver(Command(1, "join", (names[1], names[2])), sender, names[0])
    net.run(2_000)
    said = [one for one, _ in net.inbox[controller]]
    assert [(one.id, one.status) for one in said] == [(1, RECEIVED), (1, PROCESSED)]
    assert set(net.machines[names[0]].neighbours) == {names[1], names[2]}
    net.deliver(Command(2, "join", (("nobody", 1), ("nobody", 2))), sender, names[1])
    net.deliver(Command(3, "dance"), sender, names[1])
    net.run(3_000)
    said = [one for one, _ in net.inbox[controller]][2:]
    assert [(one.id, one.status) for one in said] == [(2, 101), (3, 301), (2, 202)] or [
        (one.id, one.status) for one in said
    ] == [(2, 101), (3, 301), (2, 102)]


WRONG_SEARCHES = [
    {"strategy": "wolk"},
    {"look_ahead": "bloon"},
    {"hop_limit": 0},
    {"look_ahead": "bloom", "filter_bits": 0},
    {"look_ahead": "bloom", "filter_bits": 10**12},
    {"look_ahead_wait_ms": math.nan},
    {"rounds": 41},
]


@pytest.mark.parametrize("wrong", WRONG_SEARCHES, ids=str)
def test_settings_that_mean_nothing_are_refused_with_a_hint(wrong: dict) -> None:
    from rapport.context.broker.broker_settings import SearchSettings

    with pytest.raises(InvalidInput) as raised:
        BrokerSettings(search=SearchSettings(**wrong))
    assert raised.value.code == "context.bad_settings"
    assert raised.value.hint


@pytest.mark.parametrize("wrong", [{"copies": -1}, {"at_most": -1}, {"least_validity_ms": -1}])
def test_fewer_copies_than_none_are_refused(wrong: dict) -> None:
    from rapport.context.broker.broker_settings import ReplicationSettings

    with pytest.raises(InvalidInput, match="is out of range") as raised:
        ReplicationSettings(**wrong)
    assert raised.value.code == "context.bad_settings"


def allows_writing(takes_over: str = "admin"):
    def allows(identity: str, right: str, _entity, _scope: str) -> bool:
        return right in ("read", "write") or (right == "take_over" and identity == takes_over)

    return allows


def test_a_record_belongs_to_the_key_that_wrote_it_first() -> None:
    broker = machine(allows_writing(), audits=True)
    assert say(broker, Put(1, record(n=1)), identity="sensor")[-1] == Status(1, PROCESSED)
    broker.effects.clear()
    (refused,) = say(broker, Put(2, record(start=999_500, n=2)), identity="eve")
    assert (refused.status, "another key" in refused.why) == (NOT_ALLOWED, True)
    assert broker.effects == [AuditEffect("overwrite", "eve", CLIENT, NOT_ALLOWED, ROOM, "status")]
    (answer,) = say(broker, Request(3, QUESTION))
    assert answer.record.values == {"n": 1}
    assert broker.counts["forged"] == 1
    assert (
        say(broker, Put(4, record(start=999_600, n=3)), identity="sensor")[-1].status == PROCESSED
    )


def test_others_may_tell_the_same_in_their_own_name_and_elsewhere_in_any() -> None:
    broker = machine(allows_writing())
    say(broker, Put(1, record(n=1)), identity="sensor")
    other = ContextRecord("q", ROOM, "status", 999_500, 2_000_000, {"n": 2})
    assert say(broker, Put(2, other), identity="eve")[-1].status == PROCESSED
    elsewhere = ContextRecord("p", EntityRef("room", "r2"), "status", 999_500, 2_000_000)
    assert say(broker, Put(3, elsewhere), identity="eve")[-1].status == PROCESSED


def test_an_owner_outlives_the_validity_of_its_record() -> None:
    broker = machine(allows_writing())
    say(broker, Put(1, record(end=1_000_100)), identity="sensor")
    later = Now(3_000_000, 9_000.0)
    forged = record(start=2_900_000, end=4_000_000)
    assert say(broker, Put(2, forged), now=later, identity="eve")[-1].status == NOT_ALLOWED


def test_who_has_the_right_takes_over_and_the_owner_may_go_on() -> None:
    broker = machine(allows_writing(takes_over="admin"), durable=True)
    say(broker, Put(1, record(n=1)), identity="sensor")
    broker.effects.clear()
    assert say(broker, Put(2, record(start=999_500, n=2)), identity="admin")[0].status == RECEIVED
    (kept,) = broker.effects
    assert (kept.identity, kept.owner) == ("admin", "sensor")
    assert say(broker, Put(3, record(start=999_600)), identity="sensor")[0].status == RECEIVED
    assert say(broker, Put(4, record(start=999_700)), identity="eve")[0].status == NOT_ALLOWED


def test_nobody_proven_owns_nothing() -> None:
    broker = machine(allows_writing())
    say(broker, Put(1, record(n=1)), identity="")
    assert say(broker, Put(2, record(start=999_500)), identity="sensor")[-1].status == PROCESSED
    assert say(broker, Put(3, record(start=999_600)), identity="")[-1].status == NOT_ALLOWED


def test_owners_take_no_more_memory_than_records() -> None:
    broker = machine(allows_writing(), table=TableLimits(own_records=3))
    for n in range(9):
        one = ContextRecord("p", EntityRef("room", str(n)), "status", 999_000, 1_000_001)
        say(broker, Put(n, one), now=Now(1_000_000 - 10 + n, float(n)), identity="sensor")
        broker.table.sweep(2_000_000)
    assert len(broker.ownership) == 3
