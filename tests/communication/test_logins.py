"""Passwords change while a node runs, and sessions with them."""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.backends.memory import open_memory
from rapport.communication.sessions.authenticating import Authenticating
from rapport.communication.sessions.logins import Logins
from rapport.communication.sessions.passwords import Passwords, PasswordSettings
from rapport.communication.sessions.sessions import Sessions
from rapport.core.errors import InvalidInput, NotAuthenticated, UnknownName
from rapport.kernel.clock import ManualClock


class Place:
    def __init__(self) -> None:
        self.clock = ManualClock(1_772_452_800_000)
        self.channels = open_memory(self.clock)
        self.names = {"ana"}
        records = self.channels.records
        passwords = Passwords(records, PasswordSettings(memory_kib=64, passes=1, lanes=1))
        self.door = Authenticating(
            self.channels, records, self.clock, Sessions(records, self.clock), passwords.check
        )
        self.logins = Logins(passwords, self.door, self.names.__contains__)


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
