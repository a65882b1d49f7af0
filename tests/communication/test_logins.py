"""Passwords change while a node runs, and sessions with them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.sessions.logins import Authenticator, Logins
from rapport.communication.sessions.passwords import Passwords, PasswordSettings
from rapport.communication.sessions.sessions import Sessions
from rapport.core.errors import InvalidInput, NotAuthenticated, Unavailable, UnknownName
from rapport.kernel.clock import ManualClock


class Place:
    def __init__(self) -> None:
        self.clock = ManualClock(1_772_452_800_000)
        self.channels = open_memory(self.clock)
        self.names = {"ana"}
        records = self.channels.records
        passwords = Passwords(records, PasswordSettings(memory_kib=64, passes=1, lanes=1))
        self.is_away, self.hashing, self.may_end = False, threading.Event(), threading.Event()
        self.may_end.set()
        hashed = passwords._set

        def hash_slowly(peer: str, password: str) -> bool:
            self.hashing.set()
            assert self.may_end.wait(10)
            return hashed(peer, password)

        passwords._set = hash_slowly
        self.door = Authenticator(
            self.channels,
            records,
            self.clock,
            Sessions(records, self.clock),
            passwords.check,
            is_peer=self.has,
        )
        self.logins = Logins(passwords, self.door, self.has)

    def has(self, name: str) -> bool:
        if self.is_away:
            raise Unavailable("the directory is away", code="directory.away")
        return name in self.names


def test_a_new_password_ends_the_sessions_of_the_old_one():
    async def scenario():
        place = Place()
        assert await place.logins.set_password("ana", "correct horse", by="admin") == 0
        opened = await place.door.log_in("ana", "correct horse")
        assert await place.logins.set_password("ana", "battery staple", by="admin") == 1
        assert await place.door.sessions.peer_of(opened.token) is None
        with pytest.raises(NotAuthenticated):
            await place.door.log_in("ana", "correct horse")
        events = await place.channels.channel("auth").read_after(0)
        told = [one.event.payload() for one in events if one.event.type == "rapport.auth.ended"]
        assert told[-1] == {"peer": "ana", "origin": "admin", "reason": "password set"}

    asyncio.run(scenario())


def test_a_password_that_cannot_be_taken_changes_nothing():
    async def scenario():
        place = Place()
        await place.logins.set_password("ana", "correct horse", by="admin")
        opened = await place.door.log_in("ana", "correct horse")
        with pytest.raises(InvalidInput):
            await place.logins.set_password("ana", "short", by="admin")
        with pytest.raises(UnknownName):
            await place.logins.set_password("nobody", "correct horse", by="admin")
        assert await place.door.sessions.peer_of(opened.token) == "ana"

    asyncio.run(scenario())


def test_who_comes_under_the_name_of_a_removed_peer_inherits_nothing():
    async def scenario():
        place = Place()
        await place.logins.set_password("ana", "correct horse", by="admin")
        opened = await place.door.log_in("ana", "correct horse")
        await place.logins.peer_changed("ana")
        assert await place.door.sessions.peer_of(opened.token) == "ana"
        place.names.clear()
        await place.logins.peer_changed("ana")
        assert await place.door.sessions.peer_of(opened.token) is None
        place.names.add("ana")
        with pytest.raises(NotAuthenticated):
            await place.door.log_in("ana", "correct horse")

    asyncio.run(scenario())


def test_the_password_of_who_left_while_nothing_ran_is_gone_without_any_session():
    """The peer was taken out of the site file before a start, and comes back later."""

    async def scenario():
        place = Place()
        place.names.add("ben")
        await place.logins.set_password("ana", "correct horse", by="admin")
        await place.logins.set_password("ben", "battery staple", by="admin")
        place.names.remove("ana")
        place.is_away = True
        await place.door.forget_old()  # nobody knows who has left: nothing is taken away
        place.is_away = False
        assert (await place.door.log_in("ben", "battery staple")).peer == "ben"
        await place.door.forget_old()
        place.names.add("ana")
        with pytest.raises(NotAuthenticated):
            await place.door.log_in("ana", "correct horse")
        assert (await place.door.log_in("ben", "battery staple")).peer == "ben"

    asyncio.run(scenario())


def test_a_password_whose_setter_goes_away_ends_the_sessions_of_the_old_one_all_the_same():
    async def scenario():
        place = Place()
        await place.logins.set_password("ana", "correct horse", by="admin")
        opened = await place.door.log_in("ana", "correct horse")
        place.hashing.clear()
        place.may_end.clear()
        setting = asyncio.create_task(place.logins.set_password("ana", "battery staple", by="a"))
        await asyncio.to_thread(place.hashing.wait, 10)
        setting.cancel()
        asyncio.get_running_loop().call_soon(place.may_end.set)  # not before it heard of that
        with pytest.raises(asyncio.CancelledError):
            await setting
        assert (await place.door.log_in("ana", "battery staple")).peer == "ana"
        assert await place.door.sessions.peer_of(opened.token) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["set", "removed"])
def test_a_login_with_the_old_password_that_is_just_being_checked_gets_no_session(change):
    async def scenario():
        place = Place()
        await place.logins.set_password("ana", "correct horse", by="admin")
        begin = place.door.sessions.begin

        async def begin_late(peer):
            """The check is over; meanwhile the password changes."""
            place.door.sessions.begin = begin
            if change == "set":
                await place.logins.set_password("ana", "battery staple", by="admin")
            else:
                place.names.clear()
                await place.logins.peer_changed("ana")
            return await begin(peer)

        place.door.sessions.begin = begin_late
        with pytest.raises(NotAuthenticated):
            await place.door.log_in("ana", "correct horse")
        assert await place.door.sessions.open_sessions("ana") == []
        if change == "set":
            assert (await place.door.log_in("ana", "battery staple")).peer == "ana"
        assert place.door._under_way == {}

    asyncio.run(scenario())
