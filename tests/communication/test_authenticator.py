"""Logging in: right, wrong, or not to be found out; and nothing of it in any log."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from blockbuster import blockbuster_ctx

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.communication.arrivals import Arrivals
from rapport.communication.links import answer_secret
from rapport.communication.sessions.logins import Authenticator
from rapport.communication.sessions.passwords import Passwords, PasswordSettings
from rapport.communication.sessions.sessions import Sessions, SessionSettings
from rapport.core.errors import NotAuthenticated, SourceUnavailable, TooFast, Unavailable
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock
from rapport.kernel.telemetry import hide_secrets

NOON = 1_772_452_800_000
HOUR = 3_600_000
CHEAP = PasswordSettings(memory_kib=64, passes=1, lanes=1)
ANA = Identifier("peer", "ana")
PASSWORD = "correct horse battery"


def request(content: str = "", token: str = "", sender: Identifier = ANA) -> Message:
    return Message(
        type="AUTH",
        subtype="REQUEST",
        sender=sender,
        id="m1",
        conversation="c1",
        content=content,
        session_token=token,
    )


def said(message: Message) -> Any:
    return msgspec.json.decode(message.content)


class Place:
    """Somewhere to log in."""

    def __init__(self, *, channels: Any = None, check: Any = None, **more: Any) -> None:
        self.clock = ManualClock(NOON)
        self.channels = channels or open_memory(self.clock)
        records = self.channels.records
        self.passwords = Passwords(records, CHEAP)
        self.sessions = Sessions(records, self.clock, SessionSettings(lifetime_ms=HOUR))
        self.door = Authenticator(
            self.channels,
            records,
            self.clock,
            self.sessions,
            check or self.passwords.check,
            **more,
        )

    async def events(self, channel: str = "auth") -> list[tuple[str, Any]]:
        found = await self.channels.channel(channel).read_after(0)
        return [(one.event.type, one.event.payload()) for one in found]


def test_a_request_with_the_right_password_is_answered_with_a_token():
    async def scenario():
        place = Place()
        await place.passwords.set("ana", PASSWORD)
        content = msgspec.json.encode({"password": PASSWORD}).decode()
        reply = await place.door.request(request(content), origin="10.0.0.1")
        assert (reply.type, reply.subtype) == ("AUTH", "REPLY")
        assert (reply.receiver, reply.refers_to, reply.conversation) == (ANA, "m1", "c1")
        assert str(reply.sender) == "component:authentication"
        assert await place.sessions.peer_of(reply.session_token) == "ana"
        assert said(reply)["expires"] == "2026-03-02T13:00:00.000Z"
        session = (await place.sessions.open_sessions("ana"))[0].id
        assert await place.events() == [
            ("rapport.auth.request", {"peer": "ana", "origin": "10.0.0.1"}),
            ("rapport.auth.reply", {"peer": "ana", "origin": "10.0.0.1", "session": session}),
        ]

    asyncio.run(scenario())


def test_wrong_credentials_fail_and_strangers_fail_in_the_same_words():
    async def scenario():
        place = Place(is_peer=lambda name: name == "ana")
        await place.passwords.set("ana", PASSWORD)
        await place.passwords.set("removed", PASSWORD)
        known = await place.door.request(request('{"password": "wrong horse"}'))
        answers = [known]
        for name in ("removed", "stranger", "x" * 500, "new\nline"):
            sender = Identifier("peer", name)
            content = msgspec.json.encode({"password": PASSWORD}).decode()
            answers.append(await place.door.request(request(content, sender=sender)))
        assert {answer.subtype for answer in answers} == {"FAILED"}
        assert {answer.content for answer in answers} == {known.content}
        assert said(known)["code"] == "auth.failed"
        assert [kind for kind, _data in await place.events()][-1] == "rapport.auth.failed"

    asyncio.run(scenario())


def test_a_check_that_raises_is_an_error_and_costs_no_attempt():
    async def scenario():
        def broken(_peer: Identifier, password: str) -> bool:
            raise OSError(f"directory is down, looking for {password}")

        place = Place(check=broken)
        for _ in range(30):
            reply = await place.door.request(request('{"password": "whatever it is"}'))
            assert reply.subtype == "ERROR"
            assert said(reply)["code"] == "auth.unavailable"
            assert "whatever" not in reply.content
        assert (await place.events())[-1][0] == "rapport.auth.error"

    asyncio.run(scenario())


@pytest.mark.parametrize("content", ['{"password": 7}', "not json", "[]", '{"password"'])
def test_a_request_that_cannot_be_read_is_an_error(content):
    async def scenario():
        reply = await Place().door.request(request(content))
        assert reply.subtype == "ERROR"
        assert said(reply)["code"] == "auth.bad_request"

    asyncio.run(scenario())


def test_only_peers_log_in():
    async def scenario():
        sender = Identifier("component", "policy")
        reply = await Place().door.request(request('{"password": "x"}', sender=sender))
        assert reply.subtype == "ERROR"

    asyncio.run(scenario())


def test_a_good_token_and_no_password_renews():
    async def scenario():
        place = Place()
        await place.passwords.set("ana", PASSWORD)
        opened = await place.door.log_in("ana", PASSWORD)
        place.clock.set_ms(NOON + HOUR - 1)
        reply = await place.door.request(request(token=opened.token))
        assert reply.subtype == "REPLY"
        assert reply.session_token != opened.token
        place.clock.set_ms(NOON + HOUR)
        for sender, token in (
            (ANA, opened.token),
            (ANA, ""),
            (ANA, "rst1.a.b"),
            (Identifier("peer", "ben"), reply.session_token),
        ):
            refused = await place.door.request(request(token=token, sender=sender))
            assert refused.subtype == "FAILED"
            assert not refused.session_token

    asyncio.run(scenario())


def test_a_callback_may_be_awaited_or_run_in_a_thread():
    async def scenario():
        async def awaited(peer: Identifier, password: str) -> bool:
            return peer == ANA and password == PASSWORD

        loop_thread = threading.get_ident()

        def blocking(peer: Identifier, password: str) -> bool:
            assert threading.get_ident() != loop_thread
            return peer == ANA and password == PASSWORD

        for check in (awaited, blocking):
            place = Place(check=check)
            assert (await place.door.log_in("ana", PASSWORD)).peer == "ana"
            with pytest.raises(NotAuthenticated):
                await place.door.log_in("ana", "something else")

    asyncio.run(scenario())


def test_only_true_lets_in():
    async def scenario():
        place = Place(check=lambda _peer, _password: "yes, no, maybe")
        with pytest.raises(NotAuthenticated):
            await place.door.log_in("ana", PASSWORD)

    asyncio.run(scenario())


def test_a_check_that_hangs_is_an_error_after_its_deadline():
    async def scenario():
        async def hangs(_peer: Identifier, _password: str) -> bool:
            await asyncio.Event().wait()
            return True

        place = Place(check=hangs)
        login = asyncio.ensure_future(place.door.log_in("ana", PASSWORD))
        while not place.clock._sleepers:
            await asyncio.to_thread(lambda: None)
        await place.clock.advance(30_000)
        with pytest.raises(Unavailable):
            await login

    asyncio.run(scenario())


def test_guessing_is_slowed_down_and_the_right_password_waits_too():
    async def scenario():
        place = Place()
        await place.passwords.set("ana", PASSWORD)
        for _ in range(5):
            with pytest.raises(NotAuthenticated):
                await place.door.log_in("ana", "a wrong guess", origin="10.0.0.1")
        with pytest.raises(TooFast) as slowed:
            await place.door.log_in("ana", PASSWORD, origin="10.0.0.2")
        assert slowed.value.retry_after_seconds == 1
        reply = await place.door.request(request('{"password": "x"}'))
        assert said(reply)["retry_after_seconds"] == 1
        place.clock.set_ms(NOON + 1_000)
        assert (await place.door.log_in("ana", PASSWORD)).peer == "ana"
        for _ in range(5):
            with pytest.raises(NotAuthenticated):
                await place.door.log_in("ana", "a wrong guess")

    asyncio.run(scenario())


def test_many_guesses_at_once_gain_nothing():
    async def scenario():
        looked_at = []

        def check(_peer: Identifier, password: str) -> bool:
            looked_at.append(password)
            return False

        place = Place(check=check)
        guesses = [place.door.log_in("ana", f"guess {number}") for number in range(40)]
        found = await asyncio.gather(*guesses, return_exceptions=True)
        assert len(looked_at) == 5
        assert sum(isinstance(one, TooFast) for one in found) == 35

    asyncio.run(scenario())


def test_logging_out_ends_the_session():
    async def scenario():
        place = Place(check=lambda _peer, _password: True)
        opened = await place.door.log_in("ana", PASSWORD)
        assert await place.door.log_out(opened.token)
        assert not await place.door.log_out(opened.token)
        assert await place.sessions.peer_of(opened.token) is None
        assert (await place.events())[-1] == ("rapport.auth.ended", {"peer": "ana"})

    asyncio.run(scenario())


def test_a_peer_that_left_the_directory_while_nothing_ran_is_out_soon():
    """The site file is changed, then the node started again: nobody tells that ana is gone."""

    async def scenario():
        before = Place(is_peer={"ana", "ben"}.__contains__)
        opened = {}
        for peer in ("ana", "ben"):
            await before.passwords.set(peer, PASSWORD)
            opened[peer] = await before.door.log_in(peer, PASSWORD)

        def away(_peer: str) -> bool:
            raise SourceUnavailable("who knows")

        for knows, left in ((away, ["ana", "ben"]), ({"ben"}.__contains__, ["ben"])):
            after = Place(channels=before.channels, is_peer=knows)
            await after.door.forget_old()
            good = [peer for peer in opened if await after.sessions.peer_of(opened[peer].token)]
            assert good == left
        with pytest.raises(NotAuthenticated):
            await after.door.renew(opened["ana"].token)
        assert (await before.events())[-3][1]["reason"] == "no such peer"

    asyncio.run(scenario())


def test_bad_tokens_are_answered_alike_however_many_and_fill_no_disk():
    async def scenario():
        place = Place()
        for number in range(1_500):
            with pytest.raises(NotAuthenticated):
                await place.door.renew(f"rst1.x.y.{number}", peer="ana", origin="10.0.0.66")
        assert place.channels.channel("auth").last_position() <= 2 * 1_001
        await place.clock.advance(1_000)
        noted = place.channels.channel("auth").last_position()
        with pytest.raises(NotAuthenticated):
            await place.door.renew("rst1.x.y.z", peer="ana")
        assert place.channels.channel("auth").last_position() == noted + 2

    asyncio.run(scenario())


def test_nothing_of_it_blocks_the_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path / "log", ManualClock(NOON))
        place = Place(channels=channels)
        secret = answer_secret(channels.records)
        arrivals = Arrivals(channels, channels.records, place.clock, place.door, secret=secret)
        with blockbuster_ctx():
            await place.passwords.set("ana", PASSWORD)
            opened = await place.door.log_in("ana", PASSWORD, origin="10.0.0.1")
            with pytest.raises(NotAuthenticated):
                await place.door.log_in("ana", "a wrong guess", origin="10.0.0.1")
            renewed = await place.door.renew(opened.token)
            hello = Message(type="HELLO", subtype="", sender=ANA, session_token=renewed.token)
            assert (await arrivals.publish([hello], adapter="door"))[0].accepted
            await arrivals.look()
            assert await place.door.log_out(renewed.token)
            await channels.close()

    asyncio.run(scenario())


def test_neither_password_nor_token_is_found_in_any_log_file_channel_or_record(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secrets_used: list[str] = [PASSWORD, "a wrong guess of hers"]

    async def exchange() -> None:
        channels = open_embedded(tmp_path / "log", ManualClock(NOON))
        place = Place(channels=channels)
        secret = answer_secret(channels.records)
        arrivals = Arrivals(channels, channels.records, place.clock, place.door, secret=secret)
        await place.passwords.set("ana", PASSWORD)
        for password in reversed(secrets_used[:2]):
            content = msgspec.json.encode({"password": password}).decode()
            [back] = await arrivals.publish([request(content)], adapter="door", answers_back=True)
            await arrivals.publish([request(content)], adapter="mail")
            assert back.reply is not None
        token = back.reply.session_token
        seal_key = said(back.reply)["seal_key"]
        [renewed] = await arrivals.publish(
            [request(token=token)], adapter="door", answers_back=True
        )
        assert renewed.reply is not None
        tokens = [token, renewed.reply.session_token]
        for used in (*tokens, tokens[0][:-2], "rst1.AAAA.BBBB"):
            hello = Message(type="HELLO", subtype="", sender=ANA, session_token=used, content="hi")
            stolen = msgspec.structs.replace(hello, sender=Identifier("peer", "ben"))
            await arrivals.publish([hello, stolen], adapter="door")
        place.clock.set_ms(NOON + 2 * HOUR)
        await arrivals.publish([hello], adapter="door")
        await place.door.log_out(tokens[1])
        await arrivals.look()
        secrets_used.extend([*tokens, tokens[0].split(".")[2], seal_key])
        await channels.close()

    with structlog.testing.capture_logs(processors=[hide_secrets]) as logged:
        asyncio.run(exchange())
    printed = "".join(capfd.readouterr()) + repr(logged)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"records.sqlite"}
    # What may stand there does: so the search finds what it looks for.
    assert any(b"session.of_another_peer" in path.read_bytes() for path in files)
    for used in secrets_used:
        assert used not in printed
        for path in files:
            assert used.encode() not in path.read_bytes(), path.name
