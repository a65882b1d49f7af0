"""A session token shows who its bearer is, for some hours, and nothing else does."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.sessions.seals import (
    TokenClaims,
    from_text,
    key_of,
    read_token,
    to_text,
    write_token,
)
from rapport.communication.sessions.sessions import SessionKey, Sessions, SessionSettings
from rapport.kernel.clock import ManualClock
from rapport.store.memory import MemoryRecordStore

NOON = 1_772_452_800_000
HOUR, DAY = 3_600_000, 86_400_000
SECRET = b"s" * 32

claims_of_anybody = st.builds(
    TokenClaims,
    peer=st.text(max_size=40),
    session=st.text(max_size=30),
    issued_ms=st.integers(0, 2**53),
    expires_ms=st.integers(0, 2**53),
)


def secret_of(key: str) -> bytes:
    return SECRET


@given(claims_of_anybody)
def test_what_a_token_says_is_read_again(claims):
    assert read_token(write_token(claims, "k1", SECRET), secret_of) == claims


@given(claims_of_anybody, st.data())
def test_no_letter_of_a_token_can_be_changed(claims, data):
    token = write_token(claims, "k1", SECRET)
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("ABCZabcz0189-_.=+/ é"))
    changed = token[:place] + letter + token[place + 1 :]
    assert changed == token or isinstance(read_token(changed, secret_of), str)
    assert isinstance(read_token(token + letter, secret_of), str)
    assert isinstance(read_token(token[:place], secret_of), str)


@given(st.text())
def test_no_text_is_a_token(text):
    assert isinstance(read_token(text, secret_of), str)
    assert isinstance(read_token("rst1." + text, secret_of), str)


@given(claims_of_anybody)
def test_another_key_or_none_makes_a_token_forged(claims):
    token = write_token(claims, "k1", SECRET)
    assert read_token(token, lambda _key: b"x" * 32) == "session.forged"
    assert read_token(token, lambda _key: None) == "session.forged"
    assert key_of(token) == "k1"


@given(st.binary())
def test_bytes_have_one_text(raw):
    assert from_text(to_text(raw)) == raw


class Place:
    """Sessions over records that outlive them."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.records = ManualClock(NOON), MemoryRecordStore()
        self.settings = SessionSettings(**settings)
        self.sessions = self.another()

    def another(self) -> Sessions:
        """What a restart, or another node on the same store, makes of them."""
        return Sessions(self.records, self.clock, self.settings)

    def session_keys(self) -> list[SessionKey]:
        found = self.records.find("secrets", prefix="sessions/")
        return [msgspec.msgpack.decode(value, type=SessionKey) for _, value in found]

    def later(self, duration_ms: int) -> None:
        self.clock.set_ms(self.clock.now_ms() + duration_ms)

    async def fault(self, token: str, sessions: Sessions | None = None) -> str | None:
        return (await (sessions or self.sessions).check([token]))[0].fault


def test_a_token_is_good_until_it_is_over_also_after_a_restart():
    async def scenario():
        place = Place()
        opened = await place.sessions.begin("ana")
        assert opened.expires_ms == NOON + 8 * HOUR
        assert await place.sessions.peer_of(opened.token) == "ana"
        assert await place.another().peer_of(opened.token) == "ana"
        place.later(8 * HOUR - 1)
        assert await place.sessions.peer_of(opened.token) == "ana"
        place.later(1)
        assert await place.sessions.peer_of(opened.token) is None
        assert await place.fault(opened.token) == "session.expired"

    asyncio.run(scenario())


def test_renewing_gives_a_later_token_until_the_longest_time_has_passed():
    async def scenario():
        place = Place(lifetime_ms=HOUR, longest_ms=3 * HOUR)
        first = await place.sessions.begin("ana")
        token, ends = first.token, []
        for _ in range(3):
            place.later(HOUR - 1)
            renewed = await place.sessions.renew(token)
            assert renewed is not None
            assert renewed.session == first.session
            assert renewed.seal_key == first.seal_key
            token = renewed.token
            ends.append(renewed.expires_ms - NOON)
        assert ends == [2 * HOUR - 1, 3 * HOUR - 2, 3 * HOUR]
        place.later(3)
        assert await place.sessions.renew(token) is None
        assert await place.fault(token) == "session.expired"

    asyncio.run(scenario())


def test_an_old_token_is_not_made_longer_by_renewing():
    async def scenario():
        place = Place(lifetime_ms=HOUR)
        old = await place.sessions.begin("ana")
        place.later(HOUR // 2)
        new = await place.sessions.renew(old.token)
        assert new is not None
        place.later(HOUR // 2)
        assert await place.fault(old.token) == "session.expired"
        assert await place.sessions.renew(old.token) is None
        assert await place.sessions.peer_of(new.token) == "ana"

    asyncio.run(scenario())


def test_an_ended_session_is_over_at_once_with_all_its_tokens():
    async def scenario():
        place = Place()
        first = await place.sessions.begin("ana")
        second = await place.sessions.renew(first.token)
        other = await place.sessions.begin("ana")
        assert second is not None
        assert await place.sessions.end(second.token)
        assert not await place.sessions.end(second.token)
        for token in (first.token, second.token):
            assert await place.fault(token) == "session.ended"
            assert await place.sessions.renew(token) is None
        assert await place.sessions.peer_of(other.token) == "ana"
        assert await place.sessions.end_all("ana") == 1
        assert await place.fault(other.token) == "session.ended"
        assert await place.sessions.open_sessions("ana") == []

    asyncio.run(scenario())


def test_another_node_sees_an_ending_within_some_seconds():
    async def scenario():
        place = Place(recheck_ms=5_000)
        other = place.another()
        opened = await place.sessions.begin("ana")
        assert await other.peer_of(opened.token) == "ana"
        await place.sessions.end(opened.token)
        place.later(5_000)
        assert await place.fault(opened.token, other) == "session.ended"

    asyncio.run(scenario())


def test_another_node_knows_a_key_that_was_made_elsewhere():
    async def scenario():
        place = Place(rotate_ms=DAY, lifetime_ms=2 * DAY)
        other = place.another()
        assert await other.peer_of((await place.sessions.begin("ana")).token) == "ana"
        place.later(DAY)
        assert await other.peer_of((await place.sessions.begin("ben")).token) == "ben"

    asyncio.run(scenario())


def test_keys_change_and_old_ones_stay_until_their_sessions_are_over():
    async def scenario():
        place = Place(lifetime_ms=2 * DAY, longest_ms=3 * DAY, rotate_ms=DAY)
        old = await place.sessions.begin("ana")
        place.later(DAY)
        new = await place.sessions.begin("ana")
        assert len(place.session_keys()) == 2
        assert key_of(old.token) != key_of(new.token)
        await place.sessions.forget_over()
        assert await place.sessions.peer_of(old.token) == "ana"
        place.later(3 * DAY)
        await place.sessions.forget_over()
        assert [key.id for key in place.session_keys()] == [key_of(new.token)]
        assert await place.fault(old.token) == "session.forged"

    asyncio.run(scenario())


def test_sessions_that_are_over_are_let_go_of_after_a_while():
    async def scenario():
        place = Place(lifetime_ms=HOUR, remember_ms=HOUR)
        opened = await place.sessions.begin("ana")
        place.later(2 * HOUR)
        assert await place.sessions.forget_over() == 0
        assert await place.fault(opened.token) == "session.expired"
        place.later(1)
        assert await place.sessions.forget_over() == 1
        place.later(5_000)
        assert await place.fault(opened.token) == "session.ended"

    asyncio.run(scenario())


def test_a_batch_of_tokens_is_judged_one_by_one():
    async def scenario():
        place = Place()
        ana, ben = await place.sessions.begin("ana"), await place.sessions.begin("ben")
        await place.sessions.end(ben.token)
        checked = await place.sessions.check([ana.token, ben.token, "rst1.x", "", ana.token[:-1]])
        assert [one.is_good for one in checked] == [True, False, False, False, False]
        assert checked[0].session is not None
        assert checked[0].session.peer == "ana"

    asyncio.run(scenario())


def test_nothing_that_holds_a_secret_shows_it():
    async def scenario():
        place = Place()
        opened = await place.sessions.begin("ana")
        key = place.session_keys()[0]
        assert opened.token not in repr(opened)
        assert opened.seal_key not in repr(opened)
        assert repr(key.secret) not in repr(key)

    asyncio.run(scenario())
