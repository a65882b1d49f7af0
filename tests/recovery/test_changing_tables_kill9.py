"""A whole node killed with -9 while its tables change and events flow: what it found is what a run
finds that was never killed, given the rows on record. [PO-2, PO-8, PO-11]

`rapport up` runs as a child. People are a CSV file, rooms a table in SQLite, and whether a room is
open is told over HTTP; all three change under way, also while the node is down.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from rapport.channel.backends.readonly import open_readonly
from rapport.channel.channel import Channels
from rapport.cli.main import run
from rapport.core.detection import DETECTED, Detection, detection_lines, detection_order
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Chance, SystemClock
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.explain.why_not import WhyNotQuestion
from rapport.policy.replay.log_replay import LogReplay
from rapport.policy.table_history import version_at, versions_on_record
from rapport.site.explain import explainer_of
from rapport.site.site import load_site
from rapport.tables.row_history import RowsVersion
from support.processes.node import NodeProcess
from support.servers.rows import RowsServer
from support.varied.changing_tables import ALONE, INSIDE, LASTING, SITE, WHO
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

ROUNDS = [pytest.param(2, id="2"), pytest.param(20, id="20", marks=pytest.mark.long)]
DYING = Path(__file__).with_name("dying_node.py")
SETTLE_SECONDS = 60
ROOMS = ("lab", "hall")
SQL = """sql = "SELECT id, x1, y1, x2, y2 FROM rooms"
database = "rooms.sqlite"
lifetime = "150ms"
"""
OPEN = """[tables.doors]
concept = "room"
url = "{url}"
lifetime = "120ms"
key = "id"
columns = {{ open = "open" }}
[sources.badges]"""
POLICIES = {"inside": INSIDE, "alone": ALONE, "lasting": LASTING}
T = TypeVar("T")


class Place:
    """A site whose three tables are changed by chance."""

    def __init__(self, directory: Path, server: RowsServer, chance: Chance) -> None:
        self.site, self._server, self._chance = directory, server, chance
        self.changes = 0
        directory.mkdir()
        text = SITE.replace('area = "rectangle"', 'area = "rectangle"\nopen = "text"')
        text = text.replace('csv = "people.csv"', 'csv = "people.csv"\nlifetime = "100ms"')
        text = text.replace('csv = "rooms.csv"\n', SQL)
        text = text.replace("[sources.badges]", OPEN.format(url=server.url))
        (directory / "site.toml").write_text(text)
        for name, policy in POLICIES.items():
            policy = policy.replace("room R\n", "room R (open='yes')\n")
            policy = policy.replace("for 3 s", "for 100 ms")  # nobody stays longer, and is a guest
            (directory / f"{name}.dpl").write_text(policy)
        for change in (self._people, self._rooms, self._doors):
            change()

    def change(self) -> None:
        """One of the tables has other rows, perhaps two at once."""
        ways = (self._people, self._rooms, self._doors)
        for _ in range(self._chance.randint(1, 2)):
            self._chance.choice(ways)()
        self.changes += 1

    def _people(self) -> None:
        rows = [f"{who},{self._chance.choice(('guest', 'employee'))}\n" for who in WHO]
        new = self.site / "people.new"
        new.write_text("id,status\n" + "".join(rows))
        new.replace(self.site / "people.csv")

    def _rooms(self) -> None:
        with closing(sqlite3.connect(self.site / "rooms.sqlite")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS rooms (id PRIMARY KEY, x1, y1, x2, y2)")
            for place, room in enumerate(ROOMS):
                width = self._chance.choice((10, 4))
                corners = (20 * place, 0, 20 * place + width, 10)
                database.execute("REPLACE INTO rooms VALUES (?, ?, ?, ?, ?)", (room, *corners))

    def _doors(self) -> None:
        told = [{"id": room, "open": self._chance.choice(("yes", "yes", "no"))} for room in ROOMS]
        self._server.body = json.dumps(told).encode()


class Badges:
    """Posts where people are; a reading that was not acknowledged is given up."""

    def __init__(self, node: NodeProcess, chance: Chance) -> None:
        self._node, self._chance = node, chance
        self.acknowledged = 0

    def run(self, stop: threading.Event) -> None:
        number = 0
        while not stop.wait(0.02):
            number += 1
            self.acknowledged += self._post(
                {
                    "id": f"e{number}",
                    "time": SystemClock().now_ms(),
                    "who": self._chance.choice(WHO),
                    "x": float(self._chance.choice((2, 7, 22, 27, 50))),
                    "y": 5.0,
                }
            )

    def _post(self, payload: dict[str, object]) -> bool:
        doors = self._node.doors
        if doors is None:
            return False
        connection = http.client.HTTPConnection(*doors, timeout=10)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/sources/badges", json.dumps(payload), headers)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Changes:
    """Changes the tables, whether the node is up or down."""

    def __init__(self, place: Place, chance: Chance) -> None:
        self._place, self._chance = place, chance

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self._chance.randint(50, 400) / 1_000):
            self._place.change()


@contextmanager
def at_work(*people: Badges | Changes) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=one.run, args=(stop,)) for one in people]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.1)
    return True


def looked_up(site: Path, look: Callable[[Channels], Awaitable[T]]) -> T:
    """What somebody sees who reads the log beside or after the node."""

    async def work() -> T:
        channels = open_readonly(site / ".rapport" / "log", SystemClock())
        try:
            return await look(channels)
        finally:
            await channels.close()

    return asyncio.run(work())


def found_in(written: WrittenLog) -> list[Detection]:
    kept = [one.event for one in written["detections"]]
    return [Detection.from_event(event) for event in kept if event.type == DETECTED]


def replayed(site: Path, *, with_tables: bool = True) -> set[str]:
    """What `rapport replay --from-log` finds, with the tables of then or of now."""
    loaded = load_site(site)

    async def look(channels: Channels) -> set[str]:
        log = LogReplay(
            channels,
            loaded.ontology,
            loaded.tables,
            tables=loaded.tables if with_tables else None,
            lateness_ms=loaded.lateness_ms,
            skew_ms=ALLOWED_SKEW_MS,
            since=None,
            until=SystemClock().now_ms() + 10**9,
            is_open=True,
        )
        result = await log.run([one.plan for one in loaded.policies.values()])
        ids = [one.id() for one in result.detections]
        assert len(ids) == len(set(ids))
        return set(ids)

    return looked_up(site, look)


def found_by_hand(readings: list[StoredEvent], versions: list[RowsVersion]) -> set[object]:
    """Who was where for `inside`: each reading looks at the rows that were in force at its time."""
    found: set[object] = set()
    for one in readings:
        version = version_at(versions, one.event.time)
        assert version is not None
        status = dict(rows_of(version, "people"))
        is_open = dict(rows_of(version, "doors"))
        payload = one.event.payload()
        x, y = payload["value"]
        for room, x1, y1, x2, y2 in rows_of(version, "rooms"):
            is_there = float(x1) <= x <= float(x2) and float(y1) <= y <= float(y2)
            if is_there and status[payload["key"]] == "guest" and is_open[room] == "yes":
                found.add((one.event.id, payload["key"], room))
    return found


def rows_of(version: RowsVersion, table: str) -> list[tuple[str, ...]]:
    rows = version.tables[table]
    assert rows.is_known
    return list(rows.rows)


def check_why_not(site: Path, readings: list[StoredEvent], found: list[Detection]) -> None:
    """`why-not` says of a reading that it fired where the node fired, and only there."""
    loaded = load_site(site)
    fired = {(one.causes[0][1], one.bindings["R"]) for one in found if one.policy == "inside"}

    async def look(channels: Channels) -> None:
        asking = explainer_of(loaded, channels)
        for one in readings:
            given = {"A": one.event.payload()["key"]}
            for room in ROOMS:
                question = WhyNotQuestion(at=one.event.time, given={**given, "R": room})
                answer = await asking.why_not("inside", question)
                causes = {id for item in answer.fired for _time, id in item.detection.causes}
                assert (one.event.id in causes) == ((one.event.id, room) in fired), one.event

    looked_up(site, look)


def check_as_live(site: Path, found: list[Detection]) -> None:
    """`replay --as-live` goes over to the rows of then where live did."""
    out = site / "as-live.jsonl"
    assert run(["replay", "--as-live", "--site", str(site), "--out", str(out)]) == 0
    assert out.read_bytes() == detection_lines(sorted(found, key=detection_order))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    server = RowsServer()
    try:
        yield Place(tmp_path / "site", server, Chance(1))
    finally:
        server.stop()


def wait_for_more(badges: Badges, count: int) -> None:
    """Returns when so many more readings were acknowledged."""
    enough = badges.acknowledged + count
    assert wait_until(lambda: badges.acknowledged >= enough, 30)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_kills_while_tables_change_leave_what_an_unbroken_run_finds(
    place: Place, rounds: int
) -> None:
    chance = Chance(20261116)
    with NodeProcess(place.site) as node:
        badges = Badges(node, Chance(2))
        with at_work(badges, Changes(place, Chance(3))):
            for _ in range(rounds):
                node.start()
                wait_for_more(badges, chance.randint(1, 40))
                threading.Event().wait(chance.randint(0, 300) / 1_000)
                assert node.kill() == -signal.SIGKILL
            node.start()
            wait_for_all_kinds(place.site)
        settle(place.site)
        assert node.stop()[0] == 0, node.told
    check(place, least_versions=rounds)


def test_deaths_on_the_way_of_a_change_leave_what_an_unbroken_run_finds(place: Place) -> None:
    """Before it is on record, half of it, after it, and when policies have the new rows."""
    fuse, died = place.site / "die", place.site / "died"
    with NodeProcess(place.site, program=DYING) as node:
        badges = Badges(node, Chance(4))
        with at_work(badges, Changes(place, Chance(5))):
            for where in ("before", "pieces", "after", "renewed"):
                fuse.write_text(where)
                node.start()
                assert wait_until(died.exists, 60), where
                assert node.kill() == -signal.SIGKILL
                died.unlink()
            fuse.write_text("")
            node.start()
            wait_for_all_kinds(place.site)
        settle(place.site)
        node.kill()
    check(place, least_versions=2)


def wait_for_all_kinds(site: Path) -> None:
    """People walk on until every policy has found something: how soon depends on the machine."""

    def are_there() -> bool:
        found = found_in(WrittenLog(site / ".rapport" / "log"))
        return {one.policy for one in found} == POLICIES.keys()

    assert wait_until(are_there, 120)


def settle(site: Path) -> None:
    """Waits until time has decided everything, or for too long."""

    def settled() -> bool:
        written = WrittenLog(site / ".rapport" / "log")
        last = max(one.event.time for one in written["events"])
        is_over = SystemClock().now_ms() > last + 7_000
        return is_over and replayed(site) <= set(written.detections())

    wait_until(settled, SETTLE_SECONDS)


def check(place: Place, *, least_versions: int) -> None:
    site, written = place.site, WrittenLog(place.site / ".rapport" / "log")
    readings, versions = written["events"], looked_up(site, versions_on_record)
    found = found_in(written)
    assert written.late() == []
    assert written["quarantine"] == []
    assert len(found) == len({one.id() for one in found})
    by_hand = {
        (one.causes[0][1], one.bindings["A"], one.bindings["R"])
        for one in found
        if one.policy == "inside"
    }
    assert by_hand == found_by_hand(readings, versions)
    assert {one.id() for one in found} == replayed(site)
    check_as_live(site, found)
    check_why_not(site, readings[:: max(1, len(readings) // 5)], found)
    begun = {one.place.since for one in versions if one.place.since > readings[0].event.time}
    assert len(begun) >= least_versions, "the tables hardly changed while events flowed"
    assert replayed(site, with_tables=False) != replayed(site), "the rows of now would do"
