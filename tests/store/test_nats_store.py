"""The NATS store beyond the suite: several writers, cut groups, lost answers, an absent server.
[CH-13]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading

import nats
import pytest

from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.store.base import AppendConflict, Block
from rapport.store.nats_connection import NatsTimeout
from rapport.store.nats_groups import GROUP_HEADER, GroupMark
from rapport.store.nats_store import NatsLogStore
from support.servers.nats import NatsServer

pytestmark = pytest.mark.slow


@pytest.fixture
def open_store(nats_server, nats_prefix):
    opened = []

    def open_one(**options):
        opened.append(NatsLogStore([nats_server.url], prefix=nats_prefix, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def publish(server, subject, data, headers):
    """As a program that is not ours, or one of ours that ended just after."""

    async def run():
        client = await nats.connect(server.url)
        answer = await client.request(subject, data, headers=headers, timeout=5)
        await client.close()
        return json.loads(answer.data)

    return asyncio.run(run())


def positions(blocks):
    return [place for block in blocks for place in range(block.first, block.last + 1)]


def test_an_append_after_an_old_position_is_refused_and_nothing_is_appended(open_store):
    one, other = open_store(), open_store()
    one.append_after("a", 0, [(2, b"x")], 1)
    with pytest.raises(AppendConflict):
        other.append_after("a", 0, [(1, b"y")], 2)
    assert other.append_after("a", 2, [(1, b"y")], 2)[0].first == 3
    with pytest.raises(AppendConflict):
        one.append_after("a", 2, [(1, b"z")], 3)
    assert [block.body for block in one.read_after("a", 0)] == [b"x", b"y"]


def test_threads_and_stores_at_once_leave_no_gap_and_lose_nothing(open_store):
    stores = [open_store() for _ in range(3)]

    def write(number, store):
        for turn in range(30):
            store.append("a", [(2, b"%d-%d" % (number, turn)), (1, b"+")], turn)

    threads = [
        threading.Thread(target=write, args=(number, store))
        for number, store in enumerate([*stores, stores[0]])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [store.read_after("a", 0, max_records=1000) for store in stores]
    assert found[0] == found[1] == found[2]
    assert positions(found[0]) == list(range(1, 4 * 30 * 3 + 1))
    for number in range(4):
        turns = [block.body for block in found[0] if block.body.startswith(b"%d-" % number)]
        assert turns == [b"%d-%d" % (number, turn) for turn in range(30)]


def test_an_append_larger_than_a_message_is_there_whole(open_store):
    store, other = open_store(), open_store()
    bodies = [bytes([number]) * 700_000 for number in range(6)]
    store.append("a", [(1, b"before")], 0)
    store.append("a", [(10, body) for body in bodies], 5)
    store.append("a", [(1, b"after")], 0)
    for reader in (store, other):
        found = reader.read_after("a", 0, max_records=1000)
        assert [block.body for block in found] == [b"before", *bodies, b"after"]
        (inside,) = reader.read_after("a", 35, max_records=1)
        assert (inside.first, inside.body) == (32, bodies[3])


def test_a_group_whose_writer_ended_half_way_is_never_seen_and_others_go_on(
    open_store, nats_server, nats_prefix
):
    store = open_store()
    store.append("a", [(3, b"x")], 0)
    mark = GroupMark(4, 5, 0, 0, 3, "dead-1")
    for part in range(2):
        header = GroupMark(4, 5, 0, part, 3, "dead-1").header()
        publish(nats_server, f"{nats_prefix}.log.a", b"part", {GROUP_HEADER: header})
    assert mark.last == 8
    assert store.last_position("a") == 3
    assert open_store().last_position("a") == 3
    assert positions(store.read_after("a", 0)) == [1, 2, 3]
    assert store.append("a", [(1, b"y")], 0)[0].first == 4
    other = open_store()
    assert [block.body for block in other.read_after("a", 0)] == [b"x", b"y"]
    assert other.append("a", [(1, b"z")], 0)[0].first == 5


def test_a_stream_that_holds_nothing_but_an_unfinished_group_is_empty(
    open_store, nats_server, nats_prefix
):
    store = open_store()
    store.append("a", [(1, b"x")], 0)
    store.remove("a")
    assert store.last_position("a") == 0
    store.skip_to("a", 1)
    header = GroupMark(1, 5, 0, 0, 2, "dead-1").header()
    store.append("b", [(1, b"x")], 0)
    store.trim("b", 2)
    publish(nats_server, f"{nats_prefix}.log.b", b"part", {GROUP_HEADER: header})
    assert store.last_position("b") == 1
    assert store.append("b", [(1, b"y")], 0)[0].first == 2


def test_what_was_published_by_others_is_passed_over(open_store, nats_server, nats_prefix):
    store = open_store()
    store.append("a", [(1, b"x")], 0)
    publish(nats_server, f"{nats_prefix}.log.a", b"hello", {"From": "a stranger"})
    assert [block.body for block in store.read_after("a", 0)] == [b"x"]
    other = open_store()
    assert (other.first_position("a"), other.last_position("a")) == (1, 1)
    assert store.append("a", [(1, b"y")], 0)[0].first == 2
    store.trim("a", 2)
    assert [block.body for block in other.read_after("a", 0)] == [b"y"]


def test_an_answer_that_got_lost_does_not_double_an_append(open_store, monkeypatch):
    store = open_store()
    store.append("a", [(1, b"x")], 0)
    ask, lost = store._connection.request, []

    async def deaf(subject, payload, headers=None):
        answer = await ask(subject, payload, headers)
        if headers and len(lost) < 3:
            lost.append(subject)
            raise NatsTimeout("the answer was lost")
        return answer

    monkeypatch.setattr(store._connection, "request", deaf)
    placed = store.append("a", [(2, b"y"), (1, b"z")], 0)
    assert len(lost) == 3
    assert [(block.first, block.count) for block in placed] == [(2, 2), (4, 1)]
    assert [block.body for block in open_store().read_after("a", 0)] == [b"x", b"y", b"z"]


def test_who_watches_hears_of_every_growth_whoever_appended(open_store):
    watcher, writer = open_store(), open_store()
    writer.append("old", [(3, b"x")], 0)
    heard, enough = {}, threading.Event()

    def grown(log, last):
        heard[log] = max(last, heard.get(log, 0))
        if heard == {"a": 5, "b": 2, "old": 4}:
            enough.set()

    watcher.watch(grown)
    writer.append("a", [(2, b"x"), (2, b"y")], 0)
    watcher.append("b", [(2, b"x")], 0)
    writer.append("old", [(1, b"x")], 0)
    writer.append("a", [(1, b"z")], 0)
    assert enough.wait(10), heard


def test_finding_a_position_costs_a_question_per_halving(open_store, monkeypatch):
    store = open_store()
    for number in range(600):
        store.append("a", [(3, b"%d" % number)], number)
    fresh = open_store()
    asked = []
    get = fresh._connection.get

    async def counting(stream, body):
        asked.append(body)
        return await get(stream, body)

    monkeypatch.setattr(fresh._connection, "get", counting)
    assert fresh.read_after("a", 1500, max_records=1)[0].body == b"500"
    assert len(asked) <= 12
    asked.clear()
    assert fresh.read_after("a", 1503, max_records=1)[0].body == b"501"
    assert asked == []


def test_trimming_keeps_the_end_and_a_closed_piece_lets_all_go(open_store):
    store = open_store()
    for number in range(50):
        store.append("a", [(4, b"%d" % number)], 1000 + number)
    store.trim("a", 103)
    assert store.first_position("a") == 101
    assert open_store().first_position("a") == 101
    pieces = store.pieces("a", 10)
    assert [(piece.first, piece.last) for piece in pieces] == [(101, 200)]
    assert (pieces[0].oldest, pieces[0].newest) == (1025, 1049)
    assert 0 < pieces[0].size <= store.kept_bytes("a")
    store.trim("a", 1_000)
    assert store.first_position("a") == 197
    store.close_piece("a")
    store.trim("a", 1_000)
    other = open_store()
    assert (other.first_position("a"), other.last_position("a")) == (201, 200)
    assert other.read_after("a", 0) == []
    assert other.pieces("a", 10) == []
    assert other.append("a", [(1, b"next")], 0)[0].first == 201
    assert positions(store.read_after("a", 0)) == [201]


def test_pieces_are_runs_of_messages_in_order(open_store):
    store = open_store()
    for number in range(600):
        store.append("a", [(2, b"x")], number)
    pieces = store.pieces("a", 10)
    assert [(piece.first, piece.last) for piece in pieces] == [(1, 512), (513, 1024), (1025, 1200)]
    assert [(piece.oldest, piece.newest) for piece in pieces] == [(0, 255), (256, 511), (512, 599)]
    assert store.pieces("a", 2) == pieces[:2]
    assert store.pieces("absent", 2) == []


def test_a_log_can_begin_late_have_holes_and_be_put_back(open_store):
    store = open_store()
    store.skip_to("a", 101)
    assert (store.first_position("a"), store.last_position("a")) == (101, 100)
    store.restore("a", [Block(101, 2, 7, b"x"), Block(103, 1, 9, b"y")])
    store.skip_to("a", 200)
    store.skip_to("a", 150)
    store.restore("a", [Block(200, 1, 11, b"z")])
    with pytest.raises(InvalidInput):
        store.restore("a", [Block(201, 1, 0, b"x"), Block(203, 1, 0, b"y")])
    other = open_store()
    found = other.read_after("a", 0)
    assert [(block.first, block.count, block.received) for block in found] == [
        (101, 2, 7),
        (103, 1, 9),
        (200, 1, 11),
    ]
    assert (other.first_position("a"), other.last_position("a")) == (101, 200)
    assert other.read_after("a", 150) == found[2:]


def test_a_server_that_is_not_there_is_reported_in_time():
    with pytest.raises(StoreUnavailable, match="did not answer") as caught:
        NatsLogStore(["nats://127.0.0.1:9"], patience_seconds=0.5)
    assert caught.value.code == "store.nats_unavailable"
    assert caught.value.hint


def test_a_server_without_jetstream_is_reported(tmp_path):
    server = NatsServer()
    server._configuration = lambda: f"listen: 127.0.0.1:{server.port}\n"
    with server, pytest.raises(StoreUnavailable) as caught:
        NatsLogStore([server.url], patience_seconds=3)
    assert caught.value.code == "store.nats_no_jetstream"


def test_a_store_whose_server_went_away_refuses_in_time_and_goes_on_when_it_is_back():
    with NatsServer() as server:
        store = NatsLogStore([server.url], patience_seconds=1)
        try:
            store.append("a", [(1, b"x")], 0)
            server.stop()
            for call in (
                lambda: store.append("a", [(1, b"y")], 0),
                lambda: store.read_after("a", 0),
                lambda: store.last_position("a"),
                store.logs,
            ):
                with pytest.raises(StoreUnavailable):
                    call()
            server.start()
            patient(lambda: store.append("a", [(1, b"z")], 0))
            assert [block.body for block in store.read_after("a", 0)] == [b"x", b"z"]
        finally:
            store.close()


def test_who_watches_hears_again_after_the_server_was_killed():
    with NatsServer() as server:
        watcher, writer = NatsLogStore([server.url]), NatsLogStore([server.url])
        try:
            heard, enough = [], threading.Event()

            def grown(log, last):
                heard.append((log, last))
                if ("a", 3) in heard:
                    enough.set()

            watcher.watch(grown)
            writer.append("a", [(1, b"x")], 0)
            server.kill()
            server.start()
            patient(lambda: writer.append("a", [(1, b"y")], 0))
            patient(lambda: writer.append("a", [(1, b"z")], 0))
            assert enough.wait(15), heard
        finally:
            watcher.close()
            writer.close()


def patient(call):
    """Calls until the server is there again."""
    for _again in range(30):
        try:
            return call()
        except StoreUnavailable:
            continue
    return call()


CHILD = """
import sys
from rapport.store.nats_store import NatsLogStore
from rapport.core.errors import StoreUnavailable
store = NatsLogStore([sys.argv[1]], prefix=sys.argv[2])
number = 0
while True:
    number += 1
    body = b"%d-%d " % (int(sys.argv[3]), number) + b"x" * (1_500_000 if number % 40 == 0 else 100)
    for _again in range(50):
        try:
            placed = store.append("a", [(1, body), (1, body)], number)
            break
        except StoreUnavailable:
            continue
    # One write: with PYTHONUNBUFFERED every argument would be a write of its own, and a kill
    # between two of them leaves half a line.
    print(f"{number} {placed[0].first}\\n", end="", flush=True)
"""


@pytest.mark.slow
def test_a_server_killed_under_load_loses_nothing_it_acknowledged(tmp_path):
    with NatsServer() as server:
        script = tmp_path / "child.py"
        script.write_text(CHILD)
        children = [
            subprocess.Popen(
                [sys.executable, str(script), server.url, "kill", str(number)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        acknowledged = {number: {} for number in range(2)}
        reached = [threading.Event() for _ in range(4)]

        def listen(number, child):
            for line in child.stdout:
                if not line.endswith("\n"):
                    break  # torn by the kill: nobody was told
                written, first = map(int, line.split())
                acknowledged[number][written] = first
                for round_, event in enumerate(reached):
                    if all(len(one) >= 60 * (round_ + 1) for one in acknowledged.values()):
                        event.set()

        listeners = [threading.Thread(target=listen, args=pair) for pair in enumerate(children)]
        for listener in listeners:
            listener.start()
        try:
            for event in reached[:3]:
                assert event.wait(60)
                server.kill()
                server.start()
            assert reached[3].wait(60)
        finally:
            for child in children:
                child.kill()
                child.wait()
            for listener in listeners:
                listener.join()
            for child in children:
                child.stdout.close()
        check_kept(server, acknowledged)


def check_kept(server, acknowledged):
    """Everything acknowledged stands where its writer was told, in order, without a gap."""
    store = NatsLogStore([server.url], prefix="kill")
    try:
        blocks, position = [], 0
        while found := store.read_after("a", position, max_records=200):
            blocks += found
            position = found[-1].last
        assert positions(blocks) == list(range(1, position + 1))
        at = {block.first: block.body.partition(b" ")[0] for block in blocks}
        for number, written in acknowledged.items():
            assert len(written) >= 240
            for turn, first in written.items():
                assert at[first] == at[first + 1] == b"%d-%d" % (number, turn)
    finally:
        store.close()
