"""The source side against a model, through appends, takes and restarts. [CH-1, CH-2, CH-3]"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.requests import scanner
from rapport.channel.requests.request import MOST_BYTES, Batch, Request
from rapport.core.errors import InvalidInput, LeaseExpired, NotAllowed
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock, SystemClock
from support.examples import examples

MINUTE = 60_000
QUERIES: dict[str, Any] = {
    "data.n >= 0": lambda position, n: True,
    "data.n < 3": lambda position, n: n < 3,
    "data.n IN (1, 4) OR position = 2": lambda position, n: n in (1, 4) or position == 2,
    "position > 5 AND data.n <> 0": lambda position, n: position > 5 and n != 0,
    "data.n > 99": lambda position, n: False,
}


def event(number: int, n: int = 0, data: bytes | None = None) -> Event:
    return Event("s", str(number), "t", "", number, data or b'{"n":%d}' % n)


class Requesting(RuleBasedStateMachine):
    """Every token ever given out is asked again and again; what it names was fixed at its birth."""

    tokens = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp())
        self.clock = ManualClock(1_000_000)
        self.channels = self.opened()
        self.events: list[int] = []
        self.takers: dict[int, str] = {}
        self.sets: dict[str, tuple[str, list[int]]] = {}

    def opened(self) -> Any:
        async def opening() -> Any:
            return open_embedded(self.directory, self.clock, segment_bytes=5_000)

        return self.runner.run(opening())

    def teardown(self) -> None:
        self.runner.run(self.channels.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    def ask(self, asked: Request) -> Batch:
        return self.runner.run(self.channels.source.request("c", asked, identity="me"))

    def expected(self, query: str, after: int, limit: int) -> list[int]:
        """What the model says: the first matches that nobody took."""
        wanted = QUERIES[query]
        return [
            position
            for position, n in enumerate(self.events, start=1)
            if position > after and position not in self.takers and wanted(position, n)
        ][:limit]

    def note_next(self, batch: Batch, query: str, after: int, limit: int) -> list[str]:
        following = self.expected(query, after, limit)
        assert (batch.next_token is not None) == bool(following)
        if batch.next_token is None:
            return []
        # The same set may get the same token again; it may never get another set.
        known = self.sets.setdefault(batch.next_token, (query, following))
        assert known == (query, following)
        return [batch.next_token]

    @rule(numbers=st.lists(st.integers(0, 5), min_size=1, max_size=8))
    def append(self, numbers: list[int]) -> None:
        start = len(self.events)
        new = [event(start + index, n) for index, n in enumerate(numbers, start=1)]
        self.runner.run(self.channels.channel("c").append(new))
        self.events += numbers

    @rule(
        target=tokens,
        query=st.sampled_from(sorted(QUERIES)),
        limit=st.integers(1, 6),
        take=st.booleans(),
    )
    def begin(self, query: str, limit: int, take: bool) -> Any:
        expected = self.expected(query, 0, limit)
        batch = self.ask(Request(query=query, max_messages=limit, take=take, lease_minutes=60))
        assert [stored.position for stored in batch.events] == expected
        self.sets[batch.current_token] = (query, expected)
        if take:
            self.takers.update(dict.fromkeys(expected, batch.current_token))
        after = expected[-1] if expected else 0
        return multiple(batch.current_token, *self.note_next(batch, query, after, limit))

    @rule(target=tokens, token=tokens, take=st.booleans(), limit=st.integers(1, 6))
    def go_on(self, token: str, take: bool, limit: int) -> Any:
        query, positions = self.sets[token]
        batch = self.ask(Request(token=token, take=take, max_messages=limit, lease_minutes=60))
        assert batch.current_token == token
        is_gone = any(self.takers.get(position, token) != token for position in positions)
        assert batch.gone == is_gone
        if is_gone:
            assert batch.events == ()
            return multiple(*self.note_next(batch, query, positions[0] - 1, limit))
        assert [stored.position for stored in batch.events] == positions
        if take:
            self.takers.update(dict.fromkeys(positions, token))
        if positions:
            return multiple(*self.note_next(batch, query, positions[-1], limit))
        return multiple()

    @rule(query=st.sampled_from(sorted(QUERIES)), limit=st.integers(1, 6))
    def walk(self, query: str, limit: int) -> None:
        """Along the next tokens, with appends between: each match once, in order."""
        batch = self.ask(Request(query=query, max_messages=limit))
        found = [stored.position for stored in batch.events]
        steps = 0
        while batch.next_token is not None:
            if steps % 2 and steps < 6:
                self.append([1, 4, 9])
            batch = self.ask(Request(token=batch.next_token))
            found += [stored.position for stored in batch.events]
            steps += 1
        assert found == self.expected(query, 0, 10_000)

    @rule()
    def restart(self) -> None:
        self.runner.run(self.channels.close())
        self.channels = self.opened()

    @rule(minutes=st.integers(1, 5))
    def wait(self, minutes: int) -> None:
        self.clock.set_ms(self.clock.now_ms() + minutes * MINUTE)

    @invariant()
    def nothing_is_shown_that_was_taken(self) -> None:
        if self.takers:
            batch = self.ask(Request(query={}, max_messages=10_000))
            assert not {stored.position for stored in batch.events} & set(self.takers)


Requesting.TestCase.settings = settings(
    max_examples=examples(25), stateful_step_count=20, deadline=None
)
TestRequesting = pytest.mark.slow(Requesting.TestCase)


# --- one at a time --------------------------------------------------------------------------------


def run(scenario: Any) -> None:
    asyncio.run(scenario())


async def memory_with(count: int) -> tuple[Any, ManualClock]:
    clock = ManualClock(1_000_000)
    channels = open_memory(clock)
    await channels.channel("c").append([event(number) for number in range(1, count + 1)])
    return channels, clock


def test_a_memory_channel_refuses_tokens_after_their_lease() -> None:
    async def scenario() -> None:
        channels, clock = await memory_with(5)
        source = channels.source
        asked = Request(query={}, max_messages=2, lease_minutes=3)
        batch = await source.request("c", asked, identity="me")
        assert batch.lease_minutes == 3
        clock.set_ms(clock.now_ms() + 2 * MINUTE)
        renewed = Request(token=batch.next_token, lease_minutes=3)
        batch = await source.request("c", renewed, identity="me")
        clock.set_ms(clock.now_ms() + 2 * MINUTE)
        assert (await source.request("c", renewed, identity="me")).events == batch.events
        clock.set_ms(clock.now_ms() + 3 * MINUTE)
        with pytest.raises(LeaseExpired):
            await source.request("c", renewed, identity="me")

    run(scenario)


def test_zero_lease_ends_the_session() -> None:
    async def scenario() -> None:
        channels, _clock = await memory_with(5)
        source = channels.source
        batch = await source.request("c", Request(query={}), identity="me")
        end = Request(token=batch.current_token, lease_minutes=0)
        ended = await source.request("c", end, identity="me")
        assert (ended.events, ended.next_token, ended.lease_minutes) == ((), None, 0)
        with pytest.raises(LeaseExpired):
            await source.request("c", Request(token=batch.current_token), identity="me")

    run(scenario)


def test_zero_lease_on_a_persistent_channel_leaves_tokens_valid(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, ManualClock())
        await channels.channel("c").append([event(1)])
        batch = await channels.source.request("c", Request(query={}), identity="me")
        end = Request(token=batch.current_token, lease_minutes=0)
        assert (await channels.source.request("c", end, identity="me")).events == ()
        again = await channels.source.request(
            "c", Request(token=batch.current_token), identity="me"
        )
        assert again.events == batch.events
        await channels.close()

    run(scenario)


def test_what_retention_let_go_is_gone_with_the_next_valid_token() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        channels = open_memory(clock)
        for number in range(1, 11):  # one block each: a segment of memory
            await channels.channel("c").append([event(number)])
        asked = Request(query={}, max_messages=4)
        batch = await channels.source.request("c", asked, identity="me")
        channels.parts.log.trim("c", 3)
        fresh = type(channels)(channels.parts)  # the same stores, nothing decoded in memory
        fresh.source.sessions.leases = None
        gone = await fresh.source.request("c", Request(token=batch.current_token), identity="me")
        assert (gone.gone, gone.events) == (True, ())
        rest = await fresh.source.request("c", Request(token=gone.next_token), identity="me")
        assert [stored.position for stored in rest.events] == [3, 4, 5, 6]
        whole = await fresh.source.request("c", Request(token=batch.next_token), identity="me")
        assert [stored.position for stored in whole.events] == [5, 6, 7, 8]

    run(scenario)


def test_a_long_search_is_cut_into_sets_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scanner, "SCAN_EVENTS", 50)

    async def scenario() -> None:
        channels, _clock = await memory_with(1_000)
        source = channels.source
        batch = await source.request("c", Request(query="id IN ('3', '997')"), identity="me")
        found, steps = [stored.position for stored in batch.events], 0
        while batch.next_token is not None:
            batch = await source.request("c", Request(token=batch.next_token), identity="me")
            found += [stored.position for stored in batch.events]
            steps += 1
        assert found == [3, 997]
        assert 2 < steps <= 20

    run(scenario)


def test_a_batch_of_large_messages_stays_bounded() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        data = b'"' + b"x" * 1_000_000 + b'"'
        for number in range(1, 21):
            await channels.channel("c").append([event(number, data=data)])
        batch = await channels.source.request("c", Request(query={}), identity="me")
        assert 1 <= sum(len(stored.event.data) for stored in batch.events) <= MOST_BYTES
        assert batch.next_token is not None

    run(scenario)


def test_a_queue_whose_front_was_taken_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        channels, _clock = await memory_with(9_000)
        source = channels.source
        asked = Request(query={}, max_messages=4_500, take=True)
        await source.request("c", asked, identity="me")
        await source.request("c", asked, identity="me")
        await channels.channel("c").append([event(9_001)])
        reads: list[int] = []
        channel = channels.channel("c")
        read_after = channel.read_after

        async def counted(position: int, *, limit: int = 1000) -> Any:
            reads.append(position)
            return await read_after(position, limit=limit)

        monkeypatch.setattr(channel, "read_after", counted)
        batch = await source.request("c", asked, identity="me")
        assert [stored.position for stored in batch.events] == [9_001]
        assert reads == [9_000]

    run(scenario)


def test_a_live_reader_gets_what_concurrent_publishers_append_once_and_in_order(
    tmp_path: Path,
) -> None:
    async def publish(channels: Any, publisher: int) -> None:
        for start in range(0, 150, 5):
            await channels.channel("c").append(
                [Event(f"p{publisher}", str(start + i), f"t{i % 2}", "", 0) for i in range(5)]
            )

    async def read(channels: Any, wanted: int) -> list[int]:
        source, found = channels.source, []
        batch = await source.request(
            "c", Request(query="type = 't1'", max_messages=7), identity="r"
        )
        while True:
            found += [stored.position for stored in batch.events]
            if len(found) >= wanted:
                return found
            asked = Request(token=batch.current_token, seen=True, wait_ms=20_000)
            token = batch.next_token or (await source.request("c", asked, identity="r")).next_token
            batch = await source.request("c", Request(token=token), identity="r")

    async def scenario() -> None:
        channels = open_embedded(tmp_path, SystemClock())
        readers = [read(channels, 3 * 60) for _ in range(3)]
        publishers = [publish(channels, number) for number in range(3)]
        found, *others = (await asyncio.gather(*readers, *publishers))[:3]
        stored = await channels.channel("c").read_after(0, limit=1_000)
        expected = [item.position for item in stored if item.event.type == "t1"]
        assert found == expected
        assert all(other == expected for other in others)
        await channels.close()

    run(scenario)


def test_the_first_requests_at_once_share_one_secret(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, ManualClock())
        await channels.channel("c").append([event(1)])
        asked = [channels.source.request("c", Request(query={}), identity="me") for _ in range(8)]
        batches = await asyncio.gather(*asked)
        await channels.close()
        channels = open_embedded(tmp_path, ManualClock())
        for batch in batches:
            again = Request(token=batch.current_token)
            answer = await channels.source.request("c", again, identity="me")
            assert answer.events == batch.events
        await channels.close()

    run(scenario)


def test_a_bounded_query_does_not_wait_for_what_cannot_come() -> None:
    async def scenario() -> None:
        channels, _clock = await memory_with(5)
        asked = Request(query="position < 4 AND id = '9'", wait_ms=60_000)
        batch = await channels.source.request("c", asked, identity="me")
        assert (batch.events, batch.next_token) == ((), None)

    run(scenario)


def test_a_plug_in_that_fails_is_reported_as_the_request_s_fault() -> None:
    from rapport.channel.query.query_kinds import KINDS, Query

    def failing(given: Any) -> Query:
        return Query("test-failing", given, lambda stored: 1 / 0 > 0)

    KINDS.add("queries", "test-failing", failing)

    async def scenario() -> None:
        channels, _clock = await memory_with(1)
        asked = Request(query="x", kind="test-failing")
        with pytest.raises(InvalidInput, match="ZeroDivisionError"):
            await channels.source.request("c", asked, identity="me")

    run(scenario)


def test_a_token_of_another_process_s_memory_is_refused() -> None:
    async def scenario() -> None:
        one, _clock = await memory_with(1)
        other, _clock = await memory_with(1)
        token = (await one.source.request("c", Request(query={}), identity="me")).current_token
        with pytest.raises(NotAllowed):
            await other.source.request("c", Request(token=token), identity="me")

    run(scenario)


def test_large_headers_make_smaller_sets_too() -> None:
    """A set that no receiver can read would hold up who asks for it for ever."""

    async def scenario() -> None:
        channels = open_memory(SystemClock())
        headers = {"note": "x" * 60_000}
        large = [Event("s", str(number), "t", "", 0, b"{}", headers) for number in range(400)]
        await channels.channel("c").append(large)
        request = Request(query={}, max_messages=10_000)
        found: list[str] = []
        while True:
            batch = await channels.source.request("c", request, identity="me")
            size = sum(len(one.event.headers["note"]) for one in batch.events)
            assert size <= MOST_BYTES
            found += [one.event.id for one in batch.events]
            if batch.next_token is None:
                break
            request = Request(token=batch.next_token)
        assert found == [one.id for one in large]
        await channels.close()

    asyncio.run(scenario())


def test_others_get_their_turn_while_a_query_is_tried_on_large_messages() -> None:
    turns = asyncio.run(_turns_during_a_scan())
    assert turns >= 12  # after every message


async def _turns_during_a_scan() -> int:
    channels = open_memory(SystemClock())
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    large = b'"%s"' % (b"a" * 700_000)
    await channels.channel("c").append([event(number, data=large) for number in range(12)])
    counting = asyncio.create_task(count_turns())
    asked = Request(query="data LIKE '%a_b%'")
    await channels.source.request("c", asked, identity="me")
    counting.cancel()
    await channels.close()
    return turns
