"""What gets into `input`, from whom, and what does not."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.communication.arrival_checks import ArrivalSettings
from rapport.communication.arrivals import Arrivals
from rapport.communication.links import answer_token
from rapport.communication.sessions.logins import Authenticator
from rapport.communication.sessions.seals import Seal, from_text, seal_message
from rapport.communication.sessions.sessions import OpenedSession, Sessions, SessionSettings
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock
from support.examples import examples

NOON = 1_772_452_800_000
MINUTE, HOUR = 60_000, 3_600_000
ANA, BEN = Identifier("peer", "ana"), Identifier("peer", "ben")
POLICY = Identifier("component", "policy")
SECRET = b"a" * 32


def hello(**fields: Any) -> Message:
    return Message(**({"type": "HELLO", "subtype": "", "sender": ANA, "content": "hi"} | fields))


class Place:
    """A way in, and what came through it."""

    def __init__(self, channels: Any = None, clock: Any = None, **settings: Any) -> None:
        self.clock = clock or ManualClock(NOON)
        self.channels = channels or open_memory(self.clock)
        records = self.channels.records
        self.sessions = Sessions(records, self.clock, SessionSettings(lifetime_ms=HOUR))
        self.door = Authenticator(
            self.channels, records, self.clock, self.sessions, lambda _peer, word: word == "right"
        )
        self.arrivals = Arrivals(
            self.channels,
            records,
            self.clock,
            self.door,
            secret=SECRET,
            settings=ArrivalSettings(**settings),
        )

    def restarted(self, **settings: Any) -> Place:
        return Place(self.channels, self.clock, **settings)

    async def publish(self, *messages: Message, adapter: str = "door", **more: Any) -> list[Any]:
        return await self.arrivals.publish(messages, adapter=adapter, **more)

    async def events(self, channel: str = "input") -> list[Event]:
        return [one.event for one in await self.channels.channel(channel).read_after(0)]

    async def contents(self) -> list[str]:
        return [Message.from_event(event).content for event in await self.events()]

    async def reasons(self) -> list[str]:
        return [event.payload().get("reason", "held") for event in await self.events("log")]


def run(scenario: Any) -> None:
    asyncio.run(scenario())


# --- how we know the sender ---


def test_a_session_token_proves_its_peer_and_stays_out_of_the_event():
    async def scenario():
        place = Place()
        opened = await place.sessions.begin("ana")
        message = hello(session_token=opened.token, receiver=BEN)
        [arrived] = await place.publish(message)
        assert (arrived.accepted, arrived.proof) == (True, "session")
        [event] = await place.events()
        assert event.id == arrived.id
        assert event.headers == {"proof": "session", "adapter": "door"}
        kept = Message.from_event(event)
        assert kept == msgspec.structs.replace(message, id=arrived.id, session_token="")

    run(scenario)


def test_the_four_proofs_and_none():
    async def scenario():
        place = Place()
        token = (await place.sessions.begin("ana")).token
        answer = answer_token(SECRET, "m7", "ana")
        found = await place.publish(
            hello(session_token=token),
            hello(session_token=answer, refers_to="m7"),
            hello(content="by medium"),
            hello(content="by nobody"),
            trusted=lambda message: message.content == "by medium",
        )
        assert [one.proof for one in found] == ["session", "answer", "medium", "none"]
        headers = [event.headers["proof"] for event in await place.events()]
        assert headers == ["session", "answer", "medium", "none"]

    run(scenario)


@pytest.mark.parametrize(
    ("spoil", "inner"),
    [
        (lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"), "session.malformed"),
        (lambda token: token[:-3] + "AAA" + token[-1], "session.malformed"),
        (lambda token: token[:-6] + "AAA" + token[-3:], "session.forged"),
        (lambda token: "rst1.nonsense", "session.malformed"),
        (lambda token: "nonsense", "session.malformed"),
        (lambda token: "rss1.nonsense", "seal.malformed"),
        (lambda token: "é" * 10, "session.malformed"),
    ],
)
def test_a_wrong_token_is_refused_with_one_code_outside_and_its_own_inside(spoil, inner):
    async def scenario():
        place = Place()
        token = (await place.sessions.begin("ana")).token
        [arrived] = await place.publish(
            hello(session_token=spoil(token)), trusted=lambda _message: True
        )
        assert (arrived.accepted, arrived.reason, arrived.id) == (False, "session.invalid", "")
        assert await place.events() == []
        [reason] = await place.reasons()
        assert reason in (inner, "session.forged", "session.malformed")

    run(scenario)


def test_nobody_speaks_as_another_peer_or_as_a_component():
    async def scenario():
        place = Place()
        token = (await place.sessions.begin("ana")).token
        ended = await place.sessions.begin("ana")
        await place.sessions.end(ended.token)
        found = await place.publish(
            hello(session_token=token, sender=BEN),
            hello(session_token=token, sender=POLICY),
            hello(session_token=token, sender=Identifier("collective", "guards")),
            hello(session_token=ended.token),
            hello(session_token=answer_token(SECRET, "m7", "ben"), refers_to="m7"),
            hello(session_token=answer_token(SECRET, "m8", "ana"), refers_to="m7"),
            hello(sender=POLICY),
            trusted=lambda _message: True,
        )
        assert not any(one.accepted for one in found)
        assert await place.reasons() == [
            "session.of_another_peer",
            "message.not_from_a_peer",
            "message.not_from_a_peer",
            "session.ended",
            "session.malformed",
            "session.malformed",
            "message.not_from_a_peer",
        ]
        assert await place.events() == []

    run(scenario)


def test_messages_of_the_node_itself_cannot_come_from_outside():
    async def scenario():
        place = Place()
        token = (await place.sessions.begin("ana")).token
        pairs = [("CONTROL", "ACK"), ("AUTH", "REPLY"), ("MESSAGEINFO", "REPLY")]
        messages = [hello(type=type, subtype=sub, session_token=token) for type, sub in pairs]
        found = await place.publish(*messages)
        assert {one.reason for one in found} == {"message.reserved_type"}
        [asked] = await place.publish(
            hello(type="MESSAGEINFO", subtype="REQUEST", session_token=token)
        )
        assert asked.accepted

    run(scenario)


@pytest.mark.parametrize(
    ("unproven", "accepted"),
    [("inward", [True, True, False]), ("accept", [True] * 3), ("refuse", [False] * 3)],
)
def test_who_proves_nothing_reaches_other_people_only_where_the_site_says_so(unproven, accepted):
    async def scenario():
        place = Place(unproven=unproven)
        guards = Identifier("collective", "guards")
        found = await place.publish(*(hello(receiver=to) for to in (None, POLICY, guards)))
        assert [one.accepted for one in found] == accepted

    run(scenario)


def test_an_answer_token_is_good_for_answers_only():
    async def scenario():
        place = Place()
        answer = answer_token(SECRET, "m7", "ana")
        found = await place.publish(
            *(hello(session_token=answer, refers_to="m7", receiver=to) for to in (POLICY, BEN))
        )
        assert [one.reason for one in found] == ["", "message.only_answers"]

    run(scenario)


def test_a_medium_whose_trust_check_fails_trusts_nobody():
    async def scenario():
        def broken(_message: Message) -> bool:
            raise KeyError("no such peer")

        [arrived] = await Place().publish(hello(), trusted=broken)
        assert arrived.proof == "none"

    run(scenario)


# --- ids ---


def test_the_same_message_twice_is_in_input_once():
    async def scenario():
        place = Place()
        first, second = [(await place.publish(hello(id="2837")))[0] for _ in range(2)]
        assert first == second
        assert first.id != "2837"
        [event] = await place.events()
        assert event.headers["givenid"] == "2837"

    run(scenario)


def test_nobody_takes_the_id_of_somebody_elses_message():
    async def scenario():
        place = Place()
        own = await place.arrivals.send([hello(id="m1", sender=POLICY, receiver=ANA)])
        assert own == ["m1"]
        found = [
            (await place.publish(hello(id="m1", sender=sender), adapter=adapter))[0].id
            for sender, adapter in ((ANA, "door"), (BEN, "door"), (ANA, "mail"))
        ]
        assert len({*own, *found}) == 4
        assert len(await place.events()) == 4

    run(scenario)


def test_messages_without_an_id_get_ones_that_sort_by_time():
    async def scenario():
        place = Place()
        found = []
        for _ in range(5):
            place.clock.set_ms(place.clock.now_ms() + 1)
            found += [one.id for one in await place.publish(hello())]
        assert sorted(found) == found
        assert len(set(found)) == 5

    run(scenario)


# --- limits ---


def test_a_content_that_is_too_long_harms_only_itself():
    async def scenario():
        place = Place()
        found = await place.publish(
            hello(content="x" * 50_000_000),
            hello(content="é" * 600_000),
            hello(content="\n" * 900_000),
            hello(content="x" * 1_000_000),
            hello(content="\ud800"),
        )
        assert [one.reason for one in found] == [
            "message.too_long",
            "message.too_long",
            "message.too_long",
            "",
            "message.not_text",
        ]
        assert [len(content) for content in await place.contents()] == [1_000_000]

    run(scenario)


@given(
    field=st.sampled_from(["type", "subtype", "id", "conversation", "language", "refers_to"]),
    value=st.text(st.characters(categories=("Cc", "Zl", "Cs")), min_size=1) | st.just("x" * 201),
)
@settings(max_examples=examples(40))
def test_names_with_line_breaks_or_without_end_get_nowhere(field, value):
    async def scenario():
        place = Place()
        [arrived] = await place.publish(hello(**{field: value}))
        assert arrived.reason == "message.bad_field"
        [hostile] = await place.publish(hello(sender=Identifier("peer", value)))
        assert hostile.reason == "message.bad_field"
        assert len(await place.events("log")) == 2

    run(scenario)


def test_a_sender_that_is_too_fast_waits_and_others_do_not():
    async def scenario():
        place = Place(rate=10, burst=5)
        tokens = {n: (await place.sessions.begin(n)).token for n in ("ana", "ben")}
        of_ana = [hello(session_token=tokens["ana"]) for _ in range(20)]
        found = await place.publish(*of_ana)
        assert [one.accepted for one in found] == [True] * 5 + [False] * 15
        assert found[-1].reason == "message.too_fast"
        assert await place.reasons() == ["message.too_fast"]
        [ben] = await place.publish(hello(sender=BEN, session_token=tokens["ben"]))
        [elsewhere] = await place.publish(of_ana[0], adapter="mail")
        assert ben.accepted
        assert elsewhere.accepted
        place.clock.set_ms(NOON + 500)
        found = await place.publish(*of_ana)
        assert sum(one.accepted for one in found) == 5

    run(scenario)


def test_strangers_cannot_use_up_what_a_peer_may_send():
    async def scenario():
        place = Place(rate=10, burst=5)
        token = (await place.sessions.begin("ana")).token
        await place.publish(*(hello() for _ in range(100)))
        await place.publish(*(hello(session_token="rst1.x") for _ in range(100)))
        [ana] = await place.publish(hello(session_token=token))
        assert ana.accepted
        assert len(await place.events("log")) < 15

    run(scenario)


def test_without_a_rate_everything_passes():
    async def scenario():
        place = Place(rate=0)
        found = await place.publish(*(hello() for _ in range(20_000)))
        assert all(one.accepted for one in found)

    run(scenario)


# --- sessions that are over ---


async def expired(place: Place, *contents: str) -> OpenedSession:
    """A session that is over, with messages that came too late."""
    opened = await place.sessions.begin("ana")
    place.clock.set_ms(place.clock.now_ms() + HOUR)
    messages = [hello(session_token=opened.token, content=text) for text in contents]
    for arrived in await place.publish(*messages):
        assert (arrived.accepted, arrived.reason) == (False, "session.invalid")
    return opened


def test_a_message_with_a_token_that_is_over_is_refused_and_its_peer_is_notified_once():
    async def scenario():
        place = Place()
        await expired(place, "one", "two")
        assert await place.reasons() == ["session.expired"] * 2
        [told] = [Message.from_event(event) for event in await place.events()]
        assert (told.type, told.subtype, told.receiver) == ("AUTH", "FAILED", ANA)
        assert told.content.startswith("renew")
        assert (await place.events())[0].headers["proof"] == "application"

    run(scenario)


def test_held_messages_come_in_order_when_their_peer_logs_in_again_also_after_a_restart():
    async def scenario():
        place = Place(on_expired="hold")
        await expired(place, "one", "two", "three")
        assert [kind.type for kind in await place.events("log")] == ["rapport.arriving.held"] * 3
        assert len(await place.contents()) == 1
        place = place.restarted(on_expired="hold")
        await place.door.log_in("ben", "right")
        assert len(await place.contents()) == 1
        await place.door.log_in("ana", "right")
        assert (await place.contents())[1:] == ["one", "two", "three"]
        assert (await place.events())[-1].headers["proof"] == "session"
        assert await place.arrivals.release("ana") == 0

    run(scenario)


def test_what_is_held_keeps_its_order_whatever_the_clock_does():
    async def scenario():
        place = Place(on_expired="hold")
        opened = await place.sessions.begin("ana")
        for hours, texts in ((3, ["a", "b"]), (3, ["c"]), (2, ["d", "e"])):
            place.clock.set_ms(NOON + hours * HOUR)
            told = [hello(content=text, session_token=opened.token) for text in texts]
            await place.publish(*told)
        await place.door.log_in("ana", "right")
        assert [text for text in await place.contents() if len(text) == 1] == list("abcde")

    run(scenario)


def test_what_is_held_too_long_or_too_much_is_refused_oldest_first():
    async def scenario():
        place = Place(on_expired="hold", most_held=3, hold_ms=10 * MINUTE)
        await expired(place, "one", "two", "three", "four", "five")
        reasons = [reason for reason in await place.reasons() if reason != "held"]
        assert reasons == ["message.too_many_held"] * 2
        place.clock.set_ms(place.clock.now_ms() + 10 * MINUTE - 1)
        await place.arrivals.look()
        assert place.channels.records.find("arriving.held") != []
        place.clock.set_ms(place.clock.now_ms() + 1)
        await place.arrivals.look()
        assert place.channels.records.find("arriving.held") == []
        assert (await place.reasons())[-3:] == ["session.expired"] * 3
        await place.door.log_in("ana", "right")
        assert len(await place.contents()) == 1

    run(scenario)


def test_what_is_held_goes_with_the_sessions_that_somebody_ended():
    async def scenario():
        place = Place(on_expired="hold")
        await expired(place, "from a thief")
        await place.door.end_all("ana", by="admin", reason="password set")
        await place.door.log_in("ana", "right")
        assert len(await place.contents()) == 1
        assert (await place.reasons())[-1] == "session.ended"

    run(scenario)


def test_what_is_held_is_bounded_in_bytes():
    async def scenario():
        place = Place(on_expired="hold", most_held_bytes=2_500)
        await expired(place, *(str(number) * 1_000 for number in range(5)))
        await place.door.log_in("ana", "right")
        assert [text[:1] for text in (await place.contents())[1:]] == ["3", "4"]

    run(scenario)


def test_a_held_message_that_comes_again_waits_once():
    async def scenario():
        place = Place(on_expired="hold")
        opened = await place.sessions.begin("ana")
        place.clock.set_ms(NOON + HOUR)
        for _ in range(3):
            await place.publish(hello(id="7", session_token=opened.token))
        await place.door.log_in("ana", "right")
        assert (await place.contents())[1:] == ["hi"]

    run(scenario)


# --- logging in ---


def test_a_login_is_answered_where_there_is_a_way_back_and_refused_elsewhere():
    async def scenario():
        place = Place()
        login = hello(type="AUTH", subtype="REQUEST", content='{"password": "right"}')
        _, arrived, after = await place.publish(hello(), login, hello(), answers_back=True)
        assert arrived.accepted
        assert after.accepted
        assert await place.sessions.peer_of(arrived.reply.session_token) == "ana"
        [refused] = await place.publish(login, adapter="mail")
        assert (refused.reason, refused.reply) == ("auth.no_way_back", None)
        [wrong] = await place.publish(
            hello(type="AUTH", subtype="REQUEST", content='{"password": "wrong"}'),
            answers_back=True,
        )
        assert (wrong.accepted, wrong.reply.subtype) == (False, "FAILED")
        assert len(await place.events()) == 2

    run(scenario)


def test_credentials_do_not_go_through_input():
    async def scenario():
        place = Place()
        with pytest.raises(InvalidInput) as refused:
            await place.arrivals.send([hello(type="AUTH", subtype="REQUEST", content="secret")])
        assert refused.value.code == "auth.not_through_input"
        assert await place.events() == []

    run(scenario)


# --- sealed messages ---


def sealed(opened: OpenedSession, message: Message, *, how: str = "encrypted", now_ms: int = NOON):
    key = from_text(opened.seal_key)
    seal = Seal(how, "ana", opened.session, secrets.token_bytes(12), now_ms)
    return seal_message(key, message, seal, "from-peer")


@pytest.mark.parametrize("how", ["signed", "encrypted"])
def test_a_sealed_message_needs_no_token_and_is_kept_open(how):
    async def scenario():
        place = Place()
        opened = await place.sessions.begin("ana")
        message = hello(receiver=BEN, content="meet me at nine")
        [arrived] = await place.publish(sealed(opened, message, how=how))
        assert (arrived.accepted, arrived.proof) == (True, "session")
        assert await place.contents() == ["meet me at nine"]

    run(scenario)


def test_a_sealed_message_that_is_sent_again_has_no_effect_by_any_way():
    async def scenario():
        place = Place()
        opened = await place.sessions.begin("ana")
        travels = sealed(opened, hello())
        first = await place.publish(travels)
        again = await place.publish(travels, adapter="mail")
        after = await place.restarted().publish(travels)
        assert {one.id for one in (*first, *again, *after)} == {first[0].id}
        assert len(await place.events()) == 1
        place.clock.set_ms(NOON + 5 * MINUTE + 1)
        [late] = await place.publish(travels)
        assert late.reason == "session.invalid"
        assert await place.reasons() == ["seal.stale"]

    run(scenario)


def test_a_sealed_message_is_known_again_however_much_has_come_since():
    async def scenario():
        place = Place(open_memory(ManualClock(NOON), dedupe_window=10), rate=0)
        opened = await place.sessions.begin("ana")
        travels = sealed(opened, hello(content="once"))
        await place.publish(travels)
        await place.publish(*(hello() for _ in range(100)))
        [again] = await place.publish(travels)
        assert again.accepted
        assert (await place.contents()).count("once") == 1

    run(scenario)


def test_a_seal_of_an_ended_session_of_another_peer_or_changed_is_refused():
    async def scenario():
        place = Place()
        opened = await place.sessions.begin("ana")
        travels = sealed(opened, hello(receiver=BEN))
        found = await place.publish(
            msgspec.structs.replace(travels, sender=BEN),
            msgspec.structs.replace(travels, receiver=ANA),
            msgspec.structs.replace(travels, content=travels.content + "A"),
        )
        await place.sessions.end_all("ana")
        found += await place.publish(travels)
        assert {one.reason for one in found} == {"session.invalid"}
        assert await place.reasons() == [
            "session.of_another_peer",
            "seal.wrong",
            "seal.wrong",
            "session.ended",
        ]

    run(scenario)


# --- messages of applications ---


def test_applications_are_believed_and_all_or_nothing_is_sent():
    async def scenario():
        place = Place()
        ids = await place.arrivals.send([hello(sender=POLICY, receiver=ANA), hello(id="given")])
        events = await place.events()
        assert [event.id for event in events] == ids
        assert ids[1] == "given"
        assert {event.headers["proof"] for event in events} == {"application"}
        for spoilt in (hello(content="x" * 2_000_000), hello(type=""), hello(ttl=-1)):
            with pytest.raises(InvalidInput):
                await place.arrivals.send([hello(), spoilt])
        assert len(await place.events()) == 2

    run(scenario)
