import pytest

from rapport.context.broker.broker_machine import BrokerMachine
from rapport.context.broker.broker_settings import (
    BrokerSettings,
    ReplicationSettings,
    SearchSettings,
)
from rapport.context.protocol import NOT_FOUND, PROCESSED
from rapport.kernel.clock import Chance
from rapport_lab.context.load import Load
from rapport_lab.context.network import SimulatedNetwork
from rapport_lab.context.study import SearchPoint, make_load, make_network, run_load
from rapport_lab.simulated_transport import SimulatedLink
from rapport_lab.topology import from_edges, random_regular, ring

POINT = SearchPoint(part="test", brokers=40, copies=2, requests=100, look_ahead="probe")


def asked(network, **load):
    return run_load(network, Load(**load)).table().to_pylist()


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    def rows(seed):
        network = make_network(SearchPoint(part="test", brokers=40, loss=0.1, seed=seed))
        return run_load(network, Load(requests=60, seed=5)).table()

    assert rows(1).equals(rows(1))
    assert not rows(1).equals(rows(2))


@pytest.mark.parametrize("look_ahead", ["off", "probe"])
def test_messages_through_the_codec_give_the_same_results(look_ahead):
    def rows(through_codec):
        settings = BrokerSettings(
            search=SearchSettings(look_ahead=look_ahead),
            replication=ReplicationSettings(kind="random"),
        )
        topology = random_regular(range(30), 4, Chance(1))
        link = SimulatedLink(delay_ms=2.0, jitter_ms=1.0, loss=0.1, duplication=0.05)
        network = SimulatedNetwork(
            topology, settings, link=link, seed=3, through_codec=through_codec
        )
        table = run_load(network, Load(requests=80, keys=10, within_ms=5_000)).table()
        return table, network.sent, network.lost

    assert rows(True) == rows(False)


def test_what_lies_at_the_broker_itself_costs_no_message_and_no_time():
    network = SimulatedNetwork(from_edges([(0, 1), (1, 2), (0, 2)]), BrokerSettings())
    rows = asked(network, requests=20, keys=4, copies=3)
    assert {(row["status"], row["hops"], row["messages"]) for row in rows} == {(PROCESSED, 0, 0)}
    assert {row["response_ms"] for row in rows} == {0.0}


def test_hops_messages_and_times_of_a_line_of_brokers_are_as_counted_by_hand():
    settings = BrokerSettings(
        search=SearchSettings(look_ahead="off"), replication=ReplicationSettings(kind="none")
    )
    network = SimulatedNetwork(
        from_edges([(0, 1), (1, 2)]), settings, link=SimulatedLink(delay_ms=3.0), seed=1
    )
    rows = asked(network, requests=30, keys=1, within_ms=1_000)
    home = min(rows, key=lambda row: row["hops"])["broker"]
    for row in rows:
        away = abs(row["broker"] - home)
        # From the middle it may go the wrong way first, and back.
        assert row["hops"] == away or (row["broker"] == 1 and row["hops"] == 3)
        assert row["asks"] == row["hops"]
        assert row["response_ms"] == pytest.approx(3.0 * (row["asks"] + row["returns"]))


def test_what_nobody_has_is_refused_within_the_deadline():
    settings = BrokerSettings(search=SearchSettings(hop_limit=3, look_ahead="off", rounds=1))
    network = SimulatedNetwork(ring(range(50)), settings, seed=2)
    rows = asked(network, requests=200, keys=1, within_ms=2_000)
    assert {row["status"] for row in rows} == {PROCESSED, NOT_FOUND}
    assert all(row["response_ms"] <= 2_000 for row in rows)
    assert all(row["hops"] <= 3 for row in rows)


def test_a_dead_broker_answers_nothing_and_the_others_find_ways_around_it():
    network = make_network(POINT)
    for number in range(0, 40, 8):
        network.kill(number)
    rows = run_load(network, make_load(POINT)).table().to_pylist()
    alive = [row for row in rows if row["broker"] % 8]
    assert sum(row["found"] for row in alive) > 0.8 * len(alive)
    assert not any(row["found"] for row in rows if row["broker"] % 8 == 0)


def test_a_table_of_all_requests_is_written_as_parquet(tmp_path):
    import pyarrow.parquet as pq

    outcome = run_load(make_network(POINT), make_load(POINT))
    outcome.write(tmp_path / "asked.parquet")
    assert pq.read_table(tmp_path / "asked.parquet").equals(outcome.table())
    assert outcome.table().num_rows == 100


def test_asking_for_the_next_turn_after_every_message_changes_nothing(monkeypatch):
    """The shell saves most of these questions; here is why it may."""

    def rows():
        network = make_network(SearchPoint(part="test", brokers=40, loss=0.1, look_ahead="probe"))
        return run_load(network, Load(requests=60, within_ms=3_000)).table(), network.sent

    saving = rows()
    monkeypatch.setattr("rapport_lab.context.network._PLAN_NOTHING", frozenset())
    assert rows() == saving


def test_no_broker_has_anything_to_do_before_the_time_it_says_it_wakes(monkeypatch):
    asked_for = 0
    handle, tick = BrokerMachine.handle, BrokerMachine.tick

    def check(machine):
        nonlocal asked_for
        agenda = machine.agenda
        said = agenda.wake_ms, agenda.others_ms
        due_ms = machine.next_due_ms()
        # The wall clock, by which records end, has whole milliseconds.
        assert said[0] <= (float("inf") if due_ms is None else due_ms + 1)
        assert said[1] <= agenda.others_ms + 1
        agenda.wake_ms, agenda.others_ms = said
        asked_for += 1

    def checked_handle(machine, message, sender, now):
        handle(machine, message, sender, now)
        check(machine)

    def checked_tick(machine, now):
        tick(machine, now)
        check(machine)

    monkeypatch.setattr(BrokerMachine, "handle", checked_handle)
    monkeypatch.setattr(BrokerMachine, "tick", checked_tick)
    point = SearchPoint(
        part="test",
        brokers=40,
        loss=0.2,
        look_ahead="probe",
        replication="path",
        update_every_ms=300.0,
        valid_for_ms=6_000.0,
        requests=300,
        within_ms=2_000,
    )
    network = make_network(point)
    network.kill(3)
    run_load(network, make_load(point))
    assert asked_for > 10_000
