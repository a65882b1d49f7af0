"""Interceptors: an ordered chain, changed while running; a failing one never costs an event.
[CH-10]
"""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.channel import AppendResult
from rapport.channel.consumers import GUARANTEES, NOTHING, serve, serve_with
from rapport.channel.dead_letters import DeadLetterAdmin, LetterFilter, open_again
from rapport.channel.interceptors.builtin import KINDS
from rapport.channel.interceptors.chain import (
    DROPPED,
    INTERCEPTED,
    INTERCEPTORS,
    MOST_FAULTS,
    SWITCHED_OFF,
    InterceptorSpec,
)
from rapport.channel.log.logged_channel import reader_positions
from rapport.channel.log.sequences import SequenceStamp, counted_in
from rapport.channel.requests.request import Request
from rapport.core.errors import (
    ChannelUnavailable,
    DuplicateName,
    InvalidInput,
    NotAllowed,
    UnknownName,
    Unsupported,
)
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import SystemClock
from support.numbered_events import stamped


def events(first: int, last: int, type: str = "t") -> list[Event]:
    return [Event("s", str(n), type, "", n, b'{"n":%d}' % n) for n in range(first, last + 1)]


@pytest.fixture(params=["memory", "embedded"])
def channels_of(request, tmp_path):
    def opened():
        clock = SystemClock()
        return open_memory(clock) if request.param == "memory" else open_embedded(tmp_path, clock)

    return opened


def play(scenario) -> None:
    async def limited():
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(limited())


async def ids_in(channels, name: str) -> list[str]:
    return [one.event.id for one in await channels.channel(name).read_after(0, limit=10_000)]


async def until_last(channels, name: str, position: int) -> None:
    async with asyncio.timeout(10):
        while channels.channel(name).last_position() < position:
            await SystemClock().sleep(1)


class Marks:
    """Appends its letter to the data."""

    def __init__(self, letter: str) -> None:
        self._letter = letter

    def on_append(self, channel, event):
        return [msgspec.structs.replace(event, data=event.data + self._letter.encode())]

    def on_delivery(self, channel, reader, stored):
        event = msgspec.structs.replace(
            stored.event, data=stored.event.data + b"<" + reader.encode()
        )
        return [StoredEvent(stored.position, stored.received, event)]


class Fails:
    def on_append(self, channel, event):
        raise ValueError("broken")


class Doubles:
    def on_append(self, channel, event):
        return [event, msgspec.structs.replace(event, id=event.id + "b")]


def test_the_chain_has_an_order_and_changes_while_running(channels_of):
    async def scenario():
        channels = channels_of()
        chain = channels.interceptors
        chain.add("c*", Marks("a"), name="a")
        chain.add("*", Marks("b"), name="b")
        chain.add("c", Marks("x"), name="x", before="b")
        assert [one.name for one in chain.listed("c")] == ["a", "x", "b"]
        assert [one.name for one in chain.listed("d")] == ["b"]
        await channels.channel("c").append(events(1, 1))
        await chain.remove("x")
        await channels.channel("c").append(events(2, 2))
        found = [one.event.data for one in await channels.channel("c").read_after(0)]
        assert found == [b'{"n":1}axb', b'{"n":2}ab']
        with pytest.raises(DuplicateName):
            chain.add("c", Marks("a"), name="a")
        with pytest.raises(UnknownName):
            chain.add("c", Marks("a"), before="nobody")
        with pytest.raises(UnknownName):
            await chain.remove("nobody")
        await channels.close()

    play(scenario)


def test_events_may_be_added_and_dropped_and_positions_belong_to_what_was_given(channels_of):
    async def scenario():
        channels = channels_of()
        await channels.interceptors.declare("no-2", "c", "drop", {"where": "data.n = 2"})
        channels.interceptors.add("c", Doubles())
        appended = await channels.channel("c").append(events(1, 3))
        assert appended.positions == (1, 0, 3)
        assert await ids_in(channels, "c") == ["1", "1b", "3", "3b"]
        again = await channels.channel("c").append(events(2, 3))
        assert (again.positions, again.duplicates) == ((0, 3), 2)
        (record,) = await channels.channel(INTERCEPTED).read_after(0)
        assert record.event.type == DROPPED
        assert record.event.payload()["event"]["id"] == "2"
        assert record.event.payload()["interceptor"] == "no-2"
        await channels.close()

    play(scenario)


def test_one_that_fails_loses_nothing_and_is_switched_off_and_reported(channels_of):
    async def scenario():
        channels = channels_of()
        channels.interceptors.add("c", Fails(), name="bad")
        channels.interceptors.add("c", Marks("m"))
        for number in range(1, MOST_FAULTS + 3):
            assert (await channels.channel("c").append(events(number, number))).positions == (
                number,
            )
        assert all(
            one.event.data.endswith(b"m") for one in await channels.channel("c").read_after(0)
        )
        bad = channels.interceptors.listed("c")[0]
        assert (bad.name, bad.state, bad.faults) == ("bad", "off", MOST_FAULTS)
        assert "broken" in bad.last_error
        await until_last(channels, INTERCEPTED, 1)
        (told,) = await channels.channel(INTERCEPTED).read_after(0)
        assert (told.event.type, told.event.subject) == (SWITCHED_OFF, "bad")
        await channels.interceptors.stop()
        await channels.close()

    play(scenario)


@pytest.mark.parametrize("odd", [["x"], [None], "ab", {"a": 1}, None, 5])
def test_one_that_gives_anything_but_events_has_failed_and_loses_nothing(channels_of, odd):
    class Odd:
        def on_append(self, _channel, _event):
            return odd

        def on_delivery(self, _channel, _reader, _stored):
            return odd

    async def scenario():
        channels = channels_of()
        channels.interceptors.add("c", Odd())
        channels.interceptors.add("c", Odd(), at="delivery")
        appended = await channels.channel("c").append(events(1, 3))
        assert appended.positions == (1, 2, 3)
        subscription = await channels.subscribe("c", "me")
        assert [one.position for one in await subscription.next_batch()] == [1, 2, 3]
        assert [one.faults for one in channels.interceptors.listed()] == [3, 3]
        assert all("TypeError" in one.last_error for one in channels.interceptors.listed())
        await channels.close()

    play(scenario)


def test_delivery_changes_what_readers_and_requests_are_given_not_what_is_stored(channels_of):
    async def scenario():
        channels = channels_of()
        channels.interceptors.add("c", Marks(""), at="delivery", name="marks")
        await channels.interceptors.declare(
            "odd", "c", "filter", {"where": "data.n IN (1, 3)"}, at="delivery", before="marks"
        )
        await channels.channel("c").append(events(1, 4))
        subscription = await channels.subscribe("c", "ann")
        given = await subscription.next_batch()
        assert [(one.position, one.event.data) for one in given] == [
            (1, b'{"n":1}<ann'),
            (3, b'{"n":3}<ann'),
        ]
        batch = await channels.source.request("c", Request(query={}), identity="bob")
        assert [one.event.data for one in batch.events] == [b'{"n":1}<bob', b'{"n":3}<bob']
        assert await ids_in(channels, "c") == ["1", "2", "3", "4"]
        await channels.close()

    play(scenario)


def test_counts_by_type(channels_of):
    async def scenario():
        channels = channels_of()
        await channels.interceptors.declare("tally", "*", "count")
        await channels.channel("c").append([*events(1, 3), *events(4, 4, "u")])
        (tally,) = channels.interceptors.listed()
        assert (tally.seen, tally.changed, tally.dropped) == (4, 0, 0)
        await channels.close()

    play(scenario)


def test_forwarding_begins_with_the_next_event_and_finishes_what_came_before_its_end(channels_of):
    async def scenario():
        channels = channels_of()
        chain = channels.interceptors
        await chain.start()
        await channels.channel("c").append(events(1, 5))
        settings = {"to": "phone", "where": "data.n <> 7"}
        await chain.declare("away", "c", "forward", settings)
        await channels.channel("c").append(events(6, 40))
        await chain.remove("away")
        await channels.channel("c").append(events(41, 50))
        assert await ids_in(channels, "phone") == [str(n) for n in range(6, 41) if n != 7]
        await chain.declare("away", "c", "forward", settings)
        await channels.channel("c").append(events(51, 52))
        await chain.remove("away")
        assert (await ids_in(channels, "phone"))[-3:] == ["40", "51", "52"]
        assert chain.listed() == []
        assert channels.records.find("cursors", prefix="c/intercept.") == []
        await chain.stop()
        await channels.close()

    play(scenario)


def test_a_channel_that_comes_later_is_followed_from_its_start(channels_of):
    async def scenario():
        channels = channels_of()
        await channels.interceptors.start()
        await channels.interceptors.declare("all", "new.*", "forward", {"to": "copy"})
        await channels.channel("new.one").append(events(1, 3))
        await until_last(channels, "copy", 3)
        assert await ids_in(channels, "copy") == ["1", "2", "3"]
        await channels.interceptors.stop()
        await channels.close()

    play(scenario)


def test_forwarding_in_a_circle_ends_by_itself(channels_of):
    async def scenario():
        channels = channels_of()
        await channels.interceptors.start()
        await channels.interceptors.declare("ab", "a", "forward", {"to": "b"})
        await channels.interceptors.declare("ba", "b", "forward", {"to": "a"})
        await channels.channel("a").append(events(1, 10))
        await until_last(channels, "b", 10)
        await asyncio.sleep(0.05)
        assert channels.channel("a").last_position() == 10
        await channels.interceptors.stop()
        await channels.close()

    play(scenario)


def test_a_trigger_says_once_for_each_match_what_happened(channels_of):
    async def scenario():
        channels = channels_of()
        await channels.interceptors.start()
        settings = {"to": "alarms", "where": "data.n > 3", "type": "job.ended"}
        await channels.interceptors.declare("alarm", "c", "trigger", settings)
        await channels.channel("c").append(events(1, 5))
        await until_last(channels, "alarms", 2)
        found = [one.event for one in await channels.channel("alarms").read_after(0)]
        assert [event.causes() for event in found] == [("4",), ("5",)]
        assert found[0].payload() == {"channel": "c", "position": 4, "event": "4"}
        await channels.interceptors.stop()
        await channels.close()

    play(scenario)


class Shaky:
    """Follows the log; fails while it is told to."""

    def __init__(self) -> None:
        self.fails, self.done = True, []

    async def follow(self, channel, events):
        if self.fails:
            raise ValueError("out of order")
        self.done += [one.event.id for one in events]


def test_a_following_one_that_was_switched_off_goes_on_where_it_stopped(channels_of):
    async def scenario():
        channels, shaky = channels_of(), Shaky()
        chain = channels.interceptors
        KINDS.add("interceptors", "shaky", lambda _settings, _workshop: shaky)
        try:
            await channels.channel("c").append(events(1, 1))
            await chain.start()
            await chain.declare("shaky", "c", "shaky")
        finally:
            del KINDS._added["interceptors"]["shaky"]
        await channels.channel("c").append(events(2, 6))
        await until_last(channels, INTERCEPTED, 1)
        assert chain.listed()[0].state == "off"
        buried = channels.channel("dead_letters").last_position()
        assert buried == 1  # three tries of the first event, then two of the second: five faults
        shaky.fails = False
        assert (await chain.switch_on("shaky")).state == "on"
        await channels.channel("c").append(events(7, 7))
        await chain.remove("shaky")
        assert shaky.done == ["3", "4", "5", "6", "7"]
        with pytest.raises(UnknownName):
            await chain.switch_on("shaky")
        await chain.stop()
        await channels.close()

    play(scenario)


def test_kept_interceptors_outlive_a_restart_and_go_on_where_they_stood(tmp_path):
    async def scenario():
        channels = open_embedded(tmp_path, SystemClock())
        await channels.channel("c").append(events(1, 2))
        await channels.interceptors.start()
        await channels.interceptors.declare("no-9", "c", "drop", {"where": "data.n = 9"})
        await channels.interceptors.declare("copy", "c", "forward", {"to": "copy"})
        await channels.interceptors.declare("brief", "c", "count", keep=False)
        await channels.interceptors.stop()
        await channels.channel("c").append(events(3, 4))  # nobody follows now
        await channels.close()
        channels = open_embedded(tmp_path, SystemClock())
        await channels.subscribe("c", "intercept.orphan")
        await channels.interceptors.start()
        assert [one.name for one in channels.interceptors.listed()] == ["no-9", "copy"]
        await channels.channel("c").append(events(9, 10))
        await until_last(channels, "copy", 3)
        assert await ids_in(channels, "copy") == ["3", "4", "10"]
        assert len(channels.records.find("cursors", prefix="c/intercept.")) == 1
        await channels.interceptors.stop()
        await channels.close()

    play(scenario)


class _Sink(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken += [event["id"] for event in msgspec.json.decode(body)]
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_args):
        """Quiet."""


@pytest.mark.slow
def test_copies_go_by_http_to_addresses_that_the_site_allows(channels_of):
    async def scenario():
        server = HTTPServer(("127.0.0.1", 0), _Sink)
        server.taken = []
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/phone"
        channels = channels_of()
        chain = channels.interceptors
        await chain.start()
        with pytest.raises(NotAllowed):
            await chain.declare("away", "c", "forward", {"url": url})
        chain.context = msgspec.structs.replace(chain.context, addresses=(url,))
        await channels.channel("c").append(events(1, 1))
        await chain.declare("away", "c", "forward", {"url": url})
        await channels.channel("c").append(events(2, 4))
        await chain.remove("away")
        assert server.taken == ["2", "3", "4"]
        await chain.stop()
        await channels.close()
        server.shutdown()
        thread.join()
        server.server_close()

    play(scenario)


def test_wrong_settings_are_refused_before_anything_is_kept(channels_of):
    async def scenario():
        channels = channels_of()
        chain = channels.interceptors
        for kind, settings, error in (
            ("count", {"x": 1}, InvalidInput),
            ("filter", {}, InvalidInput),
            ("filter", {"where": "data.n ="}, InvalidInput),
            ("forward", {}, InvalidInput),
            ("forward", {"to": "a", "url": "http://x"}, InvalidInput),
            ("mediate", {"interpretation": "x"}, Unsupported),
            ("contract", {}, UnknownName),
        ):
            with pytest.raises(error):
                await chain.declare("one", "c", kind, settings)
        with pytest.raises(InvalidInput):
            await chain.declare("one", "c", "forward", {"to": "d"}, at="delivery")
        with pytest.raises(InvalidInput):
            await chain.declare("no name", "c", "count")
        assert chain.listed() == []
        assert channels.records.find("interceptors") == []
        await channels.close()

    play(scenario)


def test_what_is_hidden_from_a_reader_does_not_hold_back_its_place(channels_of):
    async def scenario():
        channels = channels_of()
        hidden = {"where": "type = 'hidden'"}
        await channels.interceptors.declare("hide", "c", "drop", hidden, at="delivery")
        reader = await channels.subscribe("c", "r")
        await channels.channel("c").append(events(1, 50, "hidden"))
        assert await reader.next_batch(timeout_ms=20) == []
        assert (await channels.subscribe("c", "r")).position == 50
        await channels.channel("c").append(events(51, 51))
        await channels.channel("c").append(events(52, 60, "hidden"))
        (given,) = await reader.next_batch()
        assert await reader.next_batch(timeout_ms=20) == []
        assert (await channels.subscribe("c", "r")).position == 50, "51 is not committed yet"
        await reader.commit(given.position, b"state")
        await channels.channel("c").append(events(61, 70, "hidden"))
        assert await reader.next_batch(timeout_ms=20) == []
        again = await channels.subscribe("c", "r")
        assert (again.position, again.state) == (70, b"state")
        await channels.close()

    play(scenario)


def test_one_without_a_name_gets_a_free_one(channels_of):
    async def scenario():
        chain = channels_of().interceptors
        names = [chain.add("c", Marks(letter)) for letter in "abc"]
        await chain.remove(names[0])
        assert chain.add("c", Marks("d")) not in names[1:]
        assert len(chain.listed()) == 3

    play(scenario)


def test_one_whose_removal_the_disk_refuses_stays_and_can_be_removed_later(
    channels_of, monkeypatch
):
    async def refuse(_changes):
        raise ChannelUnavailable("the disk is full", code="store.disk_failed")

    async def scenario():
        channels = channels_of()
        await channels.interceptors.start()
        await channels.channel("a").append(events(1, 1))
        await channels.interceptors.declare("odd", "a", "drop", {"where": "data.n = 3"})
        await channels.interceptors.declare("copy", "a", "forward", {"to": "b"})
        for name in ("odd", "copy"):
            with monkeypatch.context() as broken:
                broken.setattr(channels, "apply", refuse)
                with pytest.raises(ChannelUnavailable):
                    await channels.interceptors.remove(name)
        assert [one.name for one in channels.interceptors.listed("a")] == ["odd", "copy"]
        await channels.channel("a").append(events(2, 4))
        assert channels.channel("a").last_position() == 3
        await channels.channel("b").wait_after(1)
        for name in ("odd", "copy"):
            await channels.interceptors.remove(name)
        assert channels.interceptors.listed() == []
        await channels.interceptors.stop()
        await channels.close()

    play(scenario)


def test_two_that_change_one_name_at_the_same_time_do_not_meet(channels_of):
    async def scenario():
        channels = channels_of()
        await channels.interceptors.start()
        await channels.channel("c").append(events(1, 1))
        declare, remove = channels.interceptors.declare, channels.interceptors.remove
        found = await asyncio.gather(
            declare("copy", "c", "forward", {"to": "d"}),
            declare("copy", "c", "forward", {"to": "e"}),
            return_exceptions=True,
        )
        assert found[0].settings == {"to": "d"}
        assert isinstance(found[1], DuplicateName)
        found = await asyncio.gather(remove("copy"), remove("copy"), return_exceptions=True)
        assert found[0].name == "copy"
        assert isinstance(found[1], UnknownName)
        assert (await declare("copy", "c", "forward", {"to": "e"})).settings == {"to": "e"}
        await channels.interceptors.stop()
        await channels.close()

    play(scenario)


def test_a_kept_one_that_cannot_be_made_is_shown_and_can_be_removed(tmp_path):
    async def scenario():
        channels = open_embedded(tmp_path, SystemClock())
        await channels.channel("c").append(events(1, 1))
        await channels.interceptors.start()
        await channels.interceptors.declare("copy", "c", "forward", {"to": "d"})
        await channels.interceptors.stop()
        kept = channels.records.get(INTERCEPTORS, "copy")
        unknown = msgspec.structs.replace(
            msgspec.msgpack.decode(kept, type=InterceptorSpec), kind="gone"
        )
        channels.records.put(INTERCEPTORS, "copy", msgspec.msgpack.encode(unknown))
        await channels.close()

        channels = open_embedded(tmp_path, SystemClock())
        chain = channels.interceptors
        await chain.start()
        (left_out,) = chain.listed()
        assert (left_out.name, left_out.state) == ("copy", "off")
        assert "gone" in left_out.last_error
        await channels.channel("c").append(events(2, 3))
        with pytest.raises(UnknownName):
            await chain.switch_on("copy")
        assert "intercept.copy" in reader_positions(channels.records, "c")
        await chain.remove("copy")
        assert chain.listed() == []
        assert reader_positions(channels.records, "c") == {}
        await chain.stop()
        await channels.close()

    play(scenario)


async def with_a_rule_that_cannot_be_made(tmp_path) -> None:
    """Leaves a kept rule of delivery behind, of a kind that is no longer installed."""
    channels = open_embedded(tmp_path, SystemClock())
    await channels.channel("c").append([*events(1, 2), *events(3, 3, type="secret")])
    await channels.channel("d").append(events(1, 1))
    await channels.interceptors.start()
    await channels.interceptors.declare(
        "hide", "c", "drop", {"where": "type = 'secret'"}, at="delivery"
    )
    await channels.interceptors.stop()
    kept = channels.records.get(INTERCEPTORS, "hide")
    unknown = msgspec.structs.replace(
        msgspec.msgpack.decode(kept, type=InterceptorSpec), kind="gone"
    )
    channels.records.put(INTERCEPTORS, "hide", msgspec.msgpack.encode(unknown))
    await channels.close()


def test_nothing_is_delivered_where_a_rule_that_may_hide_something_cannot_be_made(tmp_path):
    async def scenario():
        await with_a_rule_that_cannot_be_made(tmp_path)
        channels = open_embedded(tmp_path, SystemClock())
        chain, source = channels.interceptors, channels.source
        await chain.start()
        (shown,) = chain.listed()
        assert (shown.state, "gone" in shown.last_error) == ("holds back", True)
        assert channels.may_hide("c")
        assert not channels.may_hide("d")
        reader = await channels.subscribe("c", "reader")
        following = await source.follow("c", Request(query={}, from_start=True), identity="me")
        followed = await following.next_set()
        stored = await channels.channel("c").read_after(0)
        for asked in (
            reader.next_batch(),
            source.request("c", Request(query={}), identity="me"),
            source.request("c", Request(query={}, take=True), identity="me"),
            source.request("c", Request(query={"type": "t"}), identity="me"),
        ):
            with pytest.raises(ChannelUnavailable) as refused:
                await asked
            assert refused.value.code == "interceptor.missing"
            assert "intercept remove hide" in refused.value.hint
        with pytest.raises(ChannelUnavailable):
            following.given(followed)
        with pytest.raises(ChannelUnavailable):
            channels.delivered("c", "me", stored)
        batch = await source.request("d", Request(query={}), identity="me")
        assert len(batch.events) == 1
        await channels.channel("c").append(events(4, 4))  # what comes in is kept

        await chain.remove("hide")
        given = await reader.next_batch()
        assert [one.event.id for one in given] == ["1", "2", "3", "4"]
        assert len((await source.request("c", Request(query={}), identity="me")).events) == 4
        await chain.stop()
        await channels.close()

    play(scenario)


def test_a_rule_that_can_be_made_again_goes_on_hiding(tmp_path):
    async def scenario():
        await with_a_rule_that_cannot_be_made(tmp_path)
        channels = open_embedded(tmp_path, SystemClock())
        await channels.interceptors.start()
        (standing,) = channels.interceptors.chain("c")
        standing.declared = msgspec.structs.replace(standing.declared, kind="drop")
        assert (await channels.interceptors.switch_on("hide")).state == "on"
        reader = await channels.subscribe("c", "reader")
        assert [one.event.id for one in await reader.next_batch()] == ["1", "2"]
        await channels.interceptors.stop()
        await channels.close()

    play(scenario)


def test_a_plug_in_that_raises_while_it_is_made_does_not_keep_channels_from_opening(tmp_path):
    def broken(_settings, _workshop):
        raise ImportError("no module named x")

    async def scenario():
        await with_a_rule_that_cannot_be_made(tmp_path)
        channels = open_embedded(tmp_path, SystemClock())
        await channels.interceptors.start()
        (shown,) = channels.interceptors.listed()
        assert (shown.state, "no module named x" in shown.last_error) == ("holds back", True)
        await channels.interceptors.stop()
        await channels.close()

    KINDS.add("interceptors", "gone", broken)
    try:
        play(scenario)
    finally:
        del KINDS._group("interceptors")["gone"]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_readers_wait_while_a_rule_is_missing_and_lose_nothing(tmp_path, guarantee, monkeypatch):
    monkeypatch.setattr("rapport.channel.interceptors.registry._HELD_BACK_SECONDS", 0.001)
    got: list[str] = []

    async def handle(stored, _state):
        got.append(stored.event.id)
        return NOTHING

    async def scenario():
        await with_a_rule_that_cannot_be_made(tmp_path)
        clock = SystemClock()
        channels = open_embedded(tmp_path, clock)
        await channels.interceptors.start()
        serving = asyncio.create_task(serve_with(guarantee, channels, "c", "r", handle, clock))
        await clock.sleep(50)
        assert got == []
        await channels.interceptors.remove("hide")
        while len(got) < 3:
            assert not serving.done()
            await clock.sleep(1)
        assert got == ["1", "2", "3"]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await channels.interceptors.stop()
        await channels.close()

    play(scenario)


def test_a_dead_letter_comes_back_as_its_reader_is_given_it(channels_of):
    """Not as it is stored: an interceptor may have changed it for this reader."""
    got: list[bytes] = []

    async def handle(batch):
        got.append(batch[0].event.data)
        if len(got) <= 3:
            raise ValueError("not yet")

    async def scenario():
        channels, clock = channels_of(), SystemClock()
        channels.interceptors.add("c", Marks("x"), at="delivery")
        await channels.channel("c").append(events(1, 1))
        serving = asyncio.create_task(serve(channels, "c", "r", handle, clock))
        await until_last(channels, "dead_letters", 1)
        office = DeadLetterAdmin(channels, clock)
        await office.replay(LetterFilter(reader="r"))
        while len(got) < 4:
            await clock.sleep(1)
        assert got == [b'{"n":1}<r'] * 4
        while (await office.letters(LetterFilter(reader="r", state="")))[0].state != "replayed":
            await clock.sleep(1)
        await channels.apply([open_again((await office.letters(LetterFilter(state="")))[0].id)])
        await office.replay(LetterFilter(reader="r"), republish=True)
        stored = await channels.channel("c").read_after(0)
        assert [one.event.data for one in stored] == [b'{"n":1}'] * 2
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await channels.close()

    play(scenario)


def test_what_is_made_of_a_numbered_event_is_stored_whole_and_once(channels_of):
    async def scenario():
        channels = channels_of()
        channels.interceptors.add("c", Doubles())
        numbered = [
            msgspec.structs.replace(one, headers=stamped({}, SequenceStamp("p", 1, one.time)))
            for one in events(1, 3)
        ]
        for duplicates in (0, 6):  # a publisher whose answer got lost sends them again
            appended = await channels.channel("c").append(counted_in("c", numbered))
            assert appended == AppendResult((1, 3, 5), duplicates)
        both = [channels.channel("c").append(counted_in("c", numbered)) for _ in range(2)]
        assert {one.duplicates for one in await asyncio.gather(*both)} == {6}
        assert await ids_in(channels, "c") == ["1", "1b", "2", "2b", "3", "3b"]
        await channels.close()

    play(scenario)


class HidesFrom:
    """Keeps secrets from one reader."""

    def __init__(self, reader: str) -> None:
        self._reader = reader

    def on_delivery(self, channel, reader, stored):
        return [] if reader == self._reader and stored.event.type == "secret" else [stored]


@pytest.mark.parametrize("query", [{}, "time >= 0"], ids=["everything", "condition"])
def test_what_is_given_out_once_waits_for_who_may_see_it(channels_of, query):
    async def scenario():
        channels = channels_of()
        channels.interceptors.add("c", HidesFrom("a"), at="delivery")
        once = {"ttlms": "0"}
        await channels.channel("c").append(
            [
                msgspec.structs.replace(one, headers=once)
                for one in (*events(1, 2, "secret"), *events(3, 4))
            ]
        )

        async def asked(identity, **fields):
            batch = await channels.source.request("c", Request(**fields), identity=identity)
            return batch.current_token, [one.event.id for one in batch.events]

        token, found = await asked("a", query=query)
        assert found == ["3", "4"]
        assert (await asked("a", token=token))[1] == ["3", "4"]
        assert (await asked("b", query=query))[1] == ["1", "2"]
        assert (await asked("c", query=query))[1] == []
        await channels.close()

    play(scenario)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_what_is_hidden_is_hidden_under_every_guarantee(channels_of, guarantee):
    async def scenario():
        clock, channels = SystemClock(), channels_of()
        channels.interceptors.add("c", HidesFrom("r"), at="delivery")
        await channels.channel("c").append(
            [*events(1, 2, "secret"), *events(3, 3), *events(4, 4, "secret"), *events(5, 5)]
        )
        handled, done = [], asyncio.Event()

        async def handle(stored, state):
            handled.append(stored.event.id)
            if stored.event.id == "5":
                done.set()
            return NOTHING

        work = asyncio.create_task(serve_with(guarantee, channels, "c", "r", handle, clock))
        await done.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert handled == ["3", "5"]
        await channels.close()

    play(scenario)
