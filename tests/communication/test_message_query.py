"""The message query service against a plain scan of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.communication import message_query as query_module
from rapport.communication.message_query import (
    LOG_INDEX,
    Criteria,
    MessageQueries,
    check_criteria,
    query_of,
    read_token,
    with_log_index,
)
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event, make_event
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock
from support.examples import examples

NOON = 1_772_452_800_000
ANA, BEN = Identifier("peer", "ana"), Identifier("peer", "ben")
GUARDS = Identifier("collective", "guards")


def written(number: int, **fields: Any) -> Event:
    """A message as the engine logs it."""
    fields = {"type": "TASK", "subtype": "REQUEST", "sender": ANA} | fields
    return Message(id=f"m{number}", **fields).to_event(
        source="communication", time=NOON + number, policy="p", detection="d"
    )


def test_a_message_that_was_over_when_it_was_handled_says_so_itself() -> None:
    fates = ("queued", "notified", "no_receiver", "failed", "queued")
    receivers = (BEN, None, None, BEN, None)  # the last was given to people by routing rules alone
    events = []
    for number, (fate, receiver) in enumerate(zip(fates, receivers, strict=True)):
        message = Message(id=f"m{number}", type="A", subtype="B", sender=ANA, receiver=receiver)
        events.append(message.to_event(source="x", time=1, fate=fate, receivers=[]))

    async def scenario(queries: MessageQueries, _channels: Any) -> None:
        page = await queries.create_query().page()
        found = [message.fate for message in page.messages]
        assert found == ["open", "notified", "no_receiver", "failed", "routed"]
        assert await ids(queries.create_query(fate="open")) == ["m0"]
        assert await ids(queries.create_query(fate="routed")) == ["m4"]
        assert await ids(queries.create_query(fate="no_receiver")) == ["m2"]

    with_log(*events)(scenario)


def line(number: int, message: int, state: str, result: str = "", peer: str = "") -> Event:
    """A ledger line about a message."""
    data = {"message": f"m{message}", "peer": peer} | ({"result": result} if result else {})
    return make_event(
        source="communication",
        id=f"l{number}",
        type=f"rapport.delivery.{state}",
        subject=f"m{message}",
        time=NOON,
        data=data,
    )


def with_log(*events: Event) -> Callable[[Callable[[MessageQueries, Any], Any]], None]:
    """Runs a scenario on a log in memory."""

    def run(scenario: Callable[[MessageQueries, Any], Any]) -> None:
        async def whole() -> None:
            clock = ManualClock(NOON)
            channels = open_memory(clock)
            if events:
                await channels.channel("log").append(events)
            await scenario(MessageQueries(channels, clock), channels)

        asyncio.run(whole())

    return run


async def ids(query: Any) -> list[str]:
    return [found.message.id async for found in query]


def test_criteria_narrow_down_what_is_found() -> None:
    log = with_log(
        written(1, receiver=BEN, conversation="c1", content="Check Pump 7"),
        line(1, 1, "queued", peer="ben"),
        written(2, subtype="DONE", sender=BEN, receiver=ANA, conversation="c1", refers_to="m1"),
        written(3, type="NOTE", receiver=GUARDS, content="ÄRGER am Tor"),
    )

    async def scenario(queries: MessageQueries, _channels: Any) -> None:
        new = queries.create_query
        assert await ids(new()) == ["m1", "m2", "m3"]
        assert await ids(new(newest_first=True)) == ["m3", "m2", "m1"]
        assert await ids(new(type="TASK").newest_first()) == ["m2", "m1"]
        assert await ids(new(subtype="DONE")) == ["m2"]
        assert await ids(new(sender="ana")) == ["m1", "m3"]
        assert await ids(new(sender=BEN)) == ["m2"]
        assert await ids(new(receiver="collective:guards")) == ["m3"]
        assert await ids(new(conversation="c1").where(sender="peer:ana")) == ["m1"]
        assert await ids(new(refers_to="m1")) == ["m2"]
        assert await ids(new(contains="pump")) == ["m1"]
        assert await ids(new(contains="ärger")) == ["m3"]
        assert await ids(new(id="m2")) == ["m2"]
        assert await ids(new(id="m2", type="NOTE")) == []
        assert await ids(new(id="l1")) == []

    log(scenario)


def test_a_found_message_is_whole_and_tells_its_fate() -> None:
    log = with_log(
        written(1, receiver=BEN, content="x", ttl=5, language="en"),
        written(2, receiver=GUARDS),
        written(3, receiver=BEN),
        line(1, 1, "closed", result="done"),
        line(2, 2, "closed", peer="ana"),
        line(3, 2, "closed", result="failed"),
        line(4, 2, "closed", result="done"),
    )

    async def scenario(queries: MessageQueries, _channels: Any) -> None:
        page = await queries.create_query().page()
        first = page.messages[0]
        assert first.message == Message(
            **{"type": "TASK", "subtype": "REQUEST", "sender": ANA},
            **{"id": "m1", "receiver": BEN, "content": "x", "ttl": 5, "language": "en"},
        )
        assert (first.position, first.received, first.time) == (1, NOON, NOON + 1)
        assert (first.policy, first.detection) == ("p", "d")
        assert [found.fate for found in page.messages] == ["done", "failed", "open"]
        assert await ids(queries.create_query(fate="failed")) == ["m2"]
        assert await ids(queries.create_query(fate="open", newest_first=True)) == ["m3"]

    log(scenario)


@pytest.mark.parametrize("newest_first", [False, True])
def test_the_same_token_gives_the_same_page_whatever_was_logged_since(newest_first: bool) -> None:
    log = with_log(*(written(number, receiver=BEN) for number in range(1, 8)))

    async def scenario(queries: MessageQueries, channels: Any) -> None:
        query = queries.create_query(receiver="peer:ben", newest_first=newest_first, limit=3)
        first = await query.page()
        second = await query.page(first.next_token)
        later = [written(8, receiver=BEN), line(1, 4, "closed", result="done")]
        await channels.channel("log").append(later)
        assert await query.page(first.token) == first
        assert await query.page(first.next_token) == second
        assert await queries.page(token=second.token) == second
        third = await query.page(second.next_token)
        found = [one.message.id for page in (first, second, third) for one in page.messages]
        assert sorted(found) == [f"m{number}" for number in range(1, 8)]
        assert third.next_token == ""
        assert len((await query.page()).messages) == 3

    log(scenario)


def test_what_was_logged_in_a_time_is_found_by_it() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOON)
        channels = open_memory(clock)
        for number in range(1, 40):
            clock.set_ms(NOON + number * 60_000)
            await channels.channel("log").append([written(number)])
        queries = MessageQueries(channels, clock)
        since, until = NOON + 10 * 60_000, NOON + 12 * 60_000
        wanted = ["m10", "m11", "m12"]
        assert await ids(queries.create_query(since=since, until=until)) == wanted
        found = queries.create_query(since="2026-03-02T12:10:00Z", until=until)
        assert await ids(found.newest_first()) == wanted[::-1]
        assert await ids(queries.create_query(until=NOON)) == []
        assert await ids(queries.create_query(since=NOON + 10**9)) == []

    asyncio.run(scenario())


def test_a_query_that_matches_nothing_for_long_goes_on_by_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(query_module, "REACH", 1_000)
    log = with_log(written(0, type="RARE"), *(written(number) for number in range(1, 5_000)))

    async def scenario(queries: MessageQueries, _channels: Any) -> None:
        page = await queries.create_query(type="RARE", newest_first=True).page()
        assert page.messages == ()
        assert page.next_token
        assert await ids(queries.create_query(type="RARE", newest_first=True)) == ["m0"]
        assert await ids(queries.create_query(type="RARE")) == ["m0"]
        found = await queries.create_query(type="RARE", sender="ana", newest_first=True).page()
        assert [one.message.id for one in found.messages] == ["m0"]

    log(scenario)


def test_a_page_of_large_messages_is_closed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "MOST_BYTES", 25)
    log = with_log(*(written(number, content="x" * 10) for number in range(7)))

    async def scenario(queries: MessageQueries, _channels: Any) -> None:
        assert len((await queries.create_query().page()).messages) == 2
        assert await ids(queries.create_query()) == [f"m{number}" for number in range(7)]
        newest = queries.create_query(newest_first=True)
        assert await ids(newest) == [f"m{number}" for number in range(6, -1, -1)]

    log(scenario)


def test_an_event_that_cannot_be_read_hides_nothing_else() -> None:
    odd = make_event(source="x", id="odd", type="rapport.message", time=1, data=[1])
    log = with_log(written(1), odd, written(2))

    async def scenario(queries: MessageQueries, _channels: Any) -> None:
        assert await ids(queries.create_query()) == ["m1", "m2"]

    log(scenario)


@pytest.mark.parametrize(
    ("criteria", "code"),
    [
        (Criteria(limit=0), "query.bad_criteria"),
        (Criteria(limit=1_001), "query.bad_criteria"),
        (Criteria(since_ms=2, until_ms=1), "query.bad_criteria"),
        (Criteria(contains="x" * 501), "query.bad_criteria"),
        (Criteria(type="x" * 1_000), "query.bad_criteria"),
        (Criteria(contains="\ud800"), "query.bad_criteria"),
        (Criteria(sender="robot:x"), "message.bad_identifier"),
    ],
)
def test_criteria_that_cannot_be_meant_are_refused(criteria: Criteria, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_criteria(criteria)
    assert caught.value.code == code


def test_an_unknown_fate_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        check_criteria(Criteria(fate="timedout"))
    assert caught.value.nearest == ("timed_out",)


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda raw: raw.hex()))
def test_no_text_but_a_token_is_taken_for_one(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_token(text)
    assert caught.value.code == "query.bad_token"


def test_a_token_and_criteria_together_are_refused() -> None:
    async def scenario(queries: MessageQueries, _channels: Any) -> None:
        token = (await queries.create_query().page()).token
        with pytest.raises(InvalidInput):
            await queries.page(Criteria(type="TASK"), token=token)

    with_log()(scenario)


# --- against a scan, with and without an index ---

words = st.sampled_from(["", "A", "B"])
logged = st.builds(
    dict,
    type=st.sampled_from(["A", "B"]),
    subtype=st.sampled_from(["A", "B"]),
    sender=st.sampled_from([ANA, BEN]),
    receiver=st.sampled_from([None, ANA, BEN, GUARDS]),
    conversation=words,
    content=st.sampled_from(["", "Hallo", "hallo A"]),
    result=st.sampled_from(["", "", "done", "failed"]),
)
asked = st.builds(
    Criteria,
    type=words,
    subtype=words,
    sender=st.sampled_from(["", "peer:ana"]),
    receiver=st.sampled_from(["", "peer:ben", "collective:guards"]),
    conversation=words,
    contains=st.sampled_from(["", "HALLO"]),
    fate=st.sampled_from(["", "", "open", "failed"]),
    newest_first=st.booleans(),
    limit=st.integers(1, 4),
)


def scanned(several: list[dict[str, Any]], wanted: Criteria) -> list[str]:
    """What the criteria mean, said plainly."""
    found = []
    for number, one in enumerate(several):
        receiver = str(one["receiver"] or "")
        fits = all(
            want in ("", has)
            for want, has in (
                (wanted.type, one["type"]),
                (wanted.subtype, one["subtype"]),
                (wanted.sender, str(one["sender"])),
                (wanted.receiver, receiver),
                (wanted.conversation, one["conversation"]),
                (wanted.fate, one["result"] or "open"),
            )
        )
        if fits and wanted.contains.lower() in one["content"].lower():
            found.append(f"m{number}")
    return found[::-1] if wanted.newest_first else found


def events_of(several: list[dict[str, Any]]) -> list[Event]:
    events = []
    for number, one in enumerate(several):
        fields = {name: value for name, value in one.items() if name != "result"}
        events.append(written(number, **fields))
        events.append(line(2 * number, number, "queued", peer="x"))
    for number, one in enumerate(several):
        if one["result"]:
            events.append(line(2 * number + 1, number, "closed", result=one["result"]))
    return events


@given(st.lists(logged, max_size=25), st.lists(asked, min_size=1, max_size=4))
def test_pages_put_together_are_what_a_scan_finds(
    several: list[dict[str, Any]], questions: list[Criteria]
) -> None:
    async def scenario(queries: MessageQueries, _channels: Any) -> None:
        for wanted in questions:
            found = queries.create_query().where(**given_of(wanted))
            assert await ids(found) == scanned(several, wanted)

    with_log(*events_of(several))(scenario)


def given_of(wanted: Criteria) -> Any:
    fields = msgspec.structs.asdict(wanted)
    return {name: value for name, value in fields.items() if not name.endswith("_ms")}


@settings(max_examples=examples(15))
@given(several=st.lists(logged, max_size=40), questions=st.lists(asked, min_size=3, max_size=6))
def test_an_index_finds_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory,
    several: list[dict[str, Any]],
    questions: list[Criteria],
) -> None:
    async def scenario() -> None:
        clock = ManualClock(NOON)
        channels = open_embedded(tmp_path_factory.mktemp("log"), clock)
        channels.use_rules(with_log_index(ChannelsConfig()))
        events = events_of(several)
        if events:
            await channels.channel("log").append(events)
        assert channels.field_feed is not None
        channels.field_feed.catch_up()
        queries = MessageQueries(channels, clock)
        for wanted in questions:
            found = queries.create_query().where(**given_of(wanted))
            assert await ids(found) == scanned(several, wanted)
        await channels.close()

    asyncio.run(scenario())


def test_conversation_sender_and_receiver_are_looked_up_not_read(
    tmp_path: Path, clock: ManualClock
) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, clock)
        channels.use_rules(with_log_index(ChannelsConfig()))
        for criteria, path in (
            (Criteria(conversation="c"), 'data."conversation-id"'),
            (Criteria(sender="peer:ana"), "data.sender"),
            (Criteria(receiver="peer:ana"), "subject"),
        ):
            plan = channels.explain_query("log", query_of(criteria))
            assert plan.startswith(f"looked up: {path}")
        await channels.close()

    asyncio.run(scenario())


def test_a_site_that_says_how_log_is_indexed_has_the_last_word() -> None:
    own = ChannelsConfig(rules=(ChannelRules(pattern="log", index=("type",)),))
    assert with_log_index(own).rules_for("log").index == ("type",)
    kept = ChannelsConfig(rules=(ChannelRules(pattern="log", keep_for_ms=5),))
    assert with_log_index(kept).rules_for("log").index == LOG_INDEX
    assert with_log_index(kept).rules_for("log").keep_for_ms == 5
