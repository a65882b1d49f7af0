"""The ledger's index: what its rows say is what the log says, however and by whom it was fed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.communication.ledger import ROW_ORDER, ROWS, Ledger, LedgerIndex, Question, _where
from rapport.communication.ledger_events import DELIVERY_PREFIX, LedgerLine
from rapport.communication.ledger_rows import LedgerRow, read_entries
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock, SystemClock
from support.examples import examples

MEDIUM = ("queued", "handed", "confirmed", "failed", "unknown", "closed")
PERSON = ("held", "refused", "answered", "failed", "timed_out", "closed")
OF_MESSAGE = ("escalated", "failed", "closed")


def line(number: int, state: str, time: int, **fields: Any) -> Event:
    said = LedgerLine(**fields)
    return make_event(
        source="test", id=f"l{number}", type=DELIVERY_PREFIX + state, time=time, data=said
    )


def message(name: str, time: int, **fields: Any) -> Event:
    written = Message(
        type="NOTIFICATION",
        subtype="x",
        sender=Identifier("component", "policy"),
        id=name,
        receiver=Identifier("collective", "guards"),
        content=f"text of {name}",
    )
    return written.to_event(source="test", time=time, **fields)


@st.composite
def ledgers(draw: st.DrawFn) -> list[Event]:
    """Lines in any order, sensible or not."""
    events = []
    for number in range(draw(st.integers(0, 30))):
        name = draw(st.sampled_from(["m1", "m2", "m3"]))
        time = draw(st.integers(1, 9))
        about = draw(st.sampled_from(["address", "person", "message", "written"]))
        if about == "written":
            events.append(message(name, time))
            continue
        fields: dict[str, Any] = {"message": name, "policy": draw(st.sampled_from(["", "p"]))}
        if about != "message":
            fields["peer"] = draw(st.sampled_from(["ana", "ben"]))
        if about == "address":
            fields["adapter"] = draw(st.sampled_from(["mail", "inbox"]))
            fields["address"] = f"{fields['adapter']}:{fields['peer']}"
        states = {"address": MEDIUM, "person": PERSON, "message": OF_MESSAGE}[about]
        events.append(line(number, draw(st.sampled_from(states)), time, **fields))
    return events


def states_by_the_rules(events: Sequence[Event]) -> dict[tuple[str, str, str], str]:
    """Written down a second time, without the product's fold: of each row the newest line, but an
    answer stays, and a hold is over once something is queued for the person.
    """
    told: dict[tuple[str, str, str], list[str]] = {}
    for event in events:
        if not event.type.startswith(DELIVERY_PREFIX):
            continue
        data, state = event.payload(), event.type.removeprefix(DELIVERY_PREFIX)
        if not data.get("peer"):
            continue
        key = (data["message"], data["peer"], data.get("address", ""))
        told.setdefault(key, []).append(state)
        person = told.get((*key[:2], ""), [])
        is_held = bool(person) and person[-1] == "held" and "answered" not in person
        if state == "queued" and key[2] and is_held:
            told[*key[:2], ""] = []
    return {
        key: "answered" if "answered" in states else states[-1]
        for key, states in told.items()
        if states
    }


@settings(max_examples=examples(80))
@given(events=ledgers(), cuts=st.lists(st.integers(1, 7), max_size=10))
def test_a_rows_state_is_what_its_lines_say_by_the_rules_however_they_were_cut_into_pages(
    events: list[Event], cuts: list[int]
) -> None:
    index, other = LedgerIndex(), LedgerIndex()
    stored = [StoredEvent(number + 1, 0, event) for number, event in enumerate(events)]
    start, sizes = 0, iter(cuts)
    while start < len(stored):
        size = next(sizes, 5)
        assert index.ingest(stored[start : start + size], start)
        start += size
    if stored:
        assert other.ingest(stored, 0)
    rows = index.rows(Question(limit=1_000))
    assert {row.key: row.state for row in rows} == states_by_the_rules(events)
    assert rows == other.rows(Question(limit=1_000))
    assert index.messages(Question()) == other.messages(Question())
    assert index.counts(Question()) == other.counts(Question())


@settings(max_examples=examples(40))
@given(events=ledgers(), limit=st.integers(1, 4))
def test_pages_give_each_row_once_and_filters_agree_with_all_rows(
    events: list[Event], limit: int
) -> None:
    index = LedgerIndex()
    stored = [StoredEvent(number + 1, 0, event) for number, event in enumerate(events)]
    if stored:
        index.ingest(stored, 0)
    every = index.rows(Question(limit=1_000))
    assert [(row.time, row.position) for row in every] == sorted(
        ((row.time, row.position) for row in every), reverse=True
    )
    for asked in (
        {},
        {"peer": "ana"},
        {"state": "failed"},
        {"peer": "ben", "state": "answered"},
        {"message": "m1"},
        {"policy": "p", "since": 3},
        {"until": 5},
    ):
        fits = [row for row in every if _fits(row, **asked)]
        assert _all_pages(index, limit, **asked) == fits


def _fits(row: LedgerRow, since: int = 0, until: int = 99, **same: str) -> bool:
    return since <= row.time < until and all(getattr(row, k) == v for k, v in same.items())


def _all_pages(index: LedgerIndex, limit: int, **asked: Any) -> list[LedgerRow]:
    from rapport.communication.ledger import cursor_after

    found, after = list[LedgerRow](), ""
    while page := index.rows(Question(limit=limit, after=after, **asked)):
        found += page
        after = cursor_after(page[-1])
    return found


def test_a_conversation_is_found_with_all_that_its_messages_did() -> None:
    index = LedgerIndex()
    events = [
        message("m1", 1, **{"conversation-id": "c1"}),
        message("m2", 2),
        line(1, "handed", 3, message="m1", peer="ana", address="mail:a", adapter="mail"),
        line(2, "handed", 4, message="m2", peer="ana", address="mail:a", adapter="mail"),
        line(3, "answered", 5, message="m1", peer="ben"),
    ]
    index.ingest([StoredEvent(n + 1, 0, event) for n, event in enumerate(events)], 0)
    rows = index.rows(Question(conversation="c1"))
    assert [(row.peer, row.state) for row in rows] == [("ben", "answered"), ("ana", "handed")]
    assert [row.peer for row in index.rows(Question(conversation="c1", peer="ana"))] == ["ana"]
    assert [row.message for row in index.messages(Question(conversation="c1"))] == ["m1"]


def test_one_line_may_hand_over_and_close_at_once() -> None:
    index = LedgerIndex()
    fields = {"peer": "ana", "address": "inbox:", "adapter": "inbox", "result": "done"}
    events = [message("m1", 1), line(1, "handed", 2, message="m1", **fields)]
    index.ingest([StoredEvent(n + 1, 0, event) for n, event in enumerate(events)], 0)
    (row,) = index.rows(Question())
    found = index.message("m1")
    assert found is not None
    assert (row.state, found.state, found.result, found.closed_at) == (
        "handed",
        "closed",
        "done",
        2,
    )


def test_a_message_without_deliveries_shows_the_fate_it_had() -> None:
    index = LedgerIndex()
    events = [message("m1", 1, fate="notified"), message("m2", 2, fate="queued")]
    index.ingest([StoredEvent(n + 1, 0, event) for n, event in enumerate(events)], 0)
    assert [row.state for row in index.messages(Question())] == ["open", "notified"]


def test_a_cursor_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        LedgerIndex().rows(Question(after="yesterday"))
    assert refused.value.code == "ledger.bad_cursor"


def many(count: int, *, first: int = 0) -> list[Event]:
    """Messages to one of ten people each, queued, handed, closed."""
    events = []
    for number in range(first, first + count):
        fields = {"message": f"m{number}", "policy": f"p{number % 5}"}
        at = {"peer": f"peer{number % 10}", "address": "inbox:", "adapter": "inbox"}
        events += [
            message(f"m{number}", number),
            line(3 * number, "queued", number, **fields, **at),
            line(3 * number + 1, "handed" if number % 50 else "failed", number, **fields, **at),
            line(3 * number + 2, "closed", number, result="done", **fields),
        ]
    return events


def test_the_index_survives_a_restart_and_reads_only_what_is_new(
    tmp_path: Path, clock: ManualClock
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("log").append(many(100))
        ledger = Ledger(channels, LedgerIndex(tmp_path / "ledger.sqlite"))
        assert await ledger.refresh() == 400
        ledger.close()
        await channels.channel("log").append(many(1, first=100))
        again = Ledger(channels, LedgerIndex(tmp_path / "ledger.sqlite"))
        beside = Ledger(channels, LedgerIndex(tmp_path / "ledger.sqlite"))
        assert await again.refresh() == 4
        assert await beside.refresh() == 0
        assert len(beside.rows()) == 101
        again.close()
        beside.close()

    asyncio.run(scenario())


def test_two_who_feed_the_same_index_at_once_take_in_every_line_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        ledgers = [Ledger(channels, LedgerIndex(tmp_path / "ledger.sqlite")) for _ in range(3)]
        for part in range(5):
            await channels.channel("log").append(many(200, first=200 * part))
            await asyncio.gather(*(ledger.refresh() for ledger in ledgers))
        assert [len(ledger.rows()) for ledger in ledgers] == [1_000] * 3
        assert ledgers[0].rows() == ledgers[2].rows()
        for ledger in ledgers:
            ledger.close()

    asyncio.run(scenario())


def test_an_index_of_another_log_is_made_again(tmp_path: Path, clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("log").append(many(10))
        ledger = Ledger(channels, LedgerIndex(tmp_path / "ledger.sqlite"))
        await ledger.refresh()
        ledger.close()
        other = open_memory(clock)
        await other.channel("log").append(many(2, first=50))
        ledger = Ledger(other, LedgerIndex(tmp_path / "ledger.sqlite"))
        await ledger.refresh()
        assert {row.message for row in ledger.rows()} == {"m50", "m51"}
        ledger.close()

    asyncio.run(scenario())


def test_messages_that_the_log_has_let_go_of_go_here_too(clock: ManualClock) -> None:
    index = LedgerIndex()
    stored = [StoredEvent(n + 1, 0, event) for n, event in enumerate(many(5))]
    index.ingest(stored, 0)
    index.prune(9)
    assert {row.message for row in index.rows(Question())} == {"m2", "m3", "m4"}
    assert index.message("m1") is None
    assert index.lines("m1") == []


def test_the_timeline_is_everything_said_about_a_message_in_order(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("log").append(many(3))
        ledger = Ledger(channels)
        assert [(each.state, each.peer) for each in await ledger.timeline("m1")] == [
            ("written", ""),
            ("queued", "peer1"),
            ("handed", "peer1"),
            ("closed", ""),
        ]
        with pytest.raises(UnknownName):
            await ledger.timeline("m7")

    asyncio.run(scenario())


class LettingGo:
    """A log that keeps nothing before a position."""

    def __init__(self, log: Any) -> None:
        self._log, self.first = log, 1

    def last_position(self) -> int:
        return self._log.last_position()

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        return await self._log.read_after(max(position, self.first - 1), limit=limit)


def test_a_timeline_whose_beginning_the_log_let_go_of_says_the_rest_once(
    clock: ManualClock,
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("log").append(many(3))
        log = LettingGo(channels.channel("log"))
        ledger = Ledger(SimpleNamespace(channel=lambda _name: log))
        await ledger.refresh()
        *_, handed, closed = await run_of("m1", channels)
        log.first = handed
        told = [(each.state, each.peer) for each in await ledger.timeline("m1")]
        assert told == [("handed", "peer1"), ("closed", "")]
        assert closed > handed

    asyncio.run(scenario())


async def run_of(name: str, channels: Any) -> list[int]:
    """Where the log speaks of a message."""
    stored = await channels.channel("log").read_after(0)
    return [each.position for each in stored for said in read_entries(each) if said.message == name]


@pytest.mark.parametrize(
    "asked",
    [
        Question(),
        Question(peer="peer1"),
        Question(state="failed"),
        Question(peer="peer1", state="failed"),
        Question(policy="p1"),
        Question(message="m1"),
        Question(peer="peer1", since=5, until=9),
        Question(state="failed", after="7-3"),
    ],
)
def test_a_question_looks_only_at_what_it_gives(asked: Question) -> None:
    index = LedgerIndex()
    index.ingest([StoredEvent(n + 1, 0, event) for n, event in enumerate(many(200))], 0)
    (first, *rest) = index._kept.plan(ROWS, _where(asked, ROW_ORDER), newest_by=ROW_ORDER)
    assert "SEARCH" in first or "USING INDEX" in first or "COVERING" in first
    assert not any("TEMP B-TREE" in step for step in rest if not asked.message)


@pytest.mark.slow
def test_ten_times_the_ledger_costs_ten_times_the_feeding_and_the_same_to_ask(
    tmp_path: Path,
) -> None:
    feeding, asking = list[float](), list[float]()
    clock = SystemClock()
    for count in (3_000, 30_000):
        index = LedgerIndex(tmp_path / f"{count}.sqlite")
        stored = [StoredEvent(n + 1, 0, event) for n, event in enumerate(many(count))]
        begin = clock.steady_ns()
        for start in range(0, len(stored), 5_000):
            assert index.ingest(stored[start : start + 5_000], start)
        feeding.append((clock.steady_ns() - begin) / count)
        asking.append(min(_time_of_asking(index, clock) for _ in range(10)))
        index.close()
    # What grows with the whole ledger would be ten times as much; other work disturbs the clock.
    assert feeding[1] < 6 * feeding[0]
    assert asking[1] < 5 * asking[0]


def _time_of_asking(index: LedgerIndex, clock: SystemClock) -> float:
    begin = clock.steady_ns()
    for asked in (
        {"peer": "peer1"},
        {"state": "failed"},
        {"peer": "peer0", "state": "failed"},
        {"policy": "p2", "since": 1_000},
        {"message": "m500"},
    ):
        assert index.rows(Question(limit=20, **asked))  # type: ignore[arg-type]
    return clock.steady_ns() - begin
