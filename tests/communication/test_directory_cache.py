"""Directories asked elsewhere: peers are kept for a while, collectives never."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from rapport.communication.directory_callbacks import (
    CallbackDirectory,
    Callbacks,
    NoSuchCollective,
    NoSuchPeer,
)
from rapport.communication.peers import CachedDirectory, Collective, Peer, SiteDirectory
from rapport.core.errors import SourceUnavailable
from rapport.core.message import Identifier
from rapport.kernel.clock import ManualClock


class Roster:
    """An application's callbacks, counting how often they are asked."""

    def __init__(self) -> None:
        self.peers = {"ana": ("inbox:",), "ben": ("inbox:",)}
        self.members = ["ben", "ana"]
        self.asked: list[str] = []

    def peer_info(self, who: Identifier) -> Peer:
        self.asked.append(str(who))
        if who.name not in self.peers:
            raise NoSuchPeer(who.name)
        return Peer(name=who.name, addresses=self.peers[who.name])

    def collective_info(self, who: Identifier) -> Collective:
        self.asked.append(str(who))
        if who.name != "guards":
            raise NoSuchCollective(who.name)
        return Collective(name="guards", members=tuple(self.members))


def asked(peer_info: Any, collective_info: Any) -> CallbackDirectory:
    """The directory of two functions; only coroutines need a loop."""
    callbacks = Callbacks(peer_info=peer_info, collective_info=collective_info)
    no_loop = asyncio.new_event_loop()
    no_loop.close()
    return CallbackDirectory(SiteDirectory({}, {}), callbacks, no_loop)


def cached(roster: Roster, clock: ManualClock, **settings: int) -> CachedDirectory:
    directory = asked(roster.peer_info, roster.collective_info)
    return CachedDirectory(directory, clock, **settings)


def test_a_peer_is_looked_up_once_per_lifetime_and_a_collective_always(clock: ManualClock) -> None:
    roster = Roster()
    directory = cached(roster, clock)
    for _ in range(3):
        directory.peer("ana")
        directory.policy_of("guards")
    assert roster.asked.count("peer:ana") == 1
    assert roster.asked.count("collective:guards") == 3
    roster.peers["ana"] = ("mail:ana@example.org",)
    clock.set_ms(clock.now_ms() + 59_999)
    assert directory.peer("ana") == Peer(name="ana", addresses=("inbox:",))
    clock.set_ms(clock.now_ms() + 1)
    assert directory.peer("ana") == Peer(name="ana", addresses=("mail:ana@example.org",))


def test_a_changed_peer_is_looked_up_again_at_once(clock: ManualClock) -> None:
    roster = Roster()
    directory = cached(roster, clock)
    directory.peer("ana")
    roster.peers["ana"] = ("mail:ana@example.org",)
    directory.forget("ana")
    assert directory.peer("ana") == Peer(name="ana", addresses=("mail:ana@example.org",))


def test_a_peer_that_changes_during_its_look_up_is_looked_up_again(clock: ManualClock) -> None:
    roster = Roster()

    def slow(who: Identifier) -> Peer:
        found = roster.peer_info(who)
        if len(roster.asked) == 1:
            roster.peers["ana"] = ("mail:ana@example.org",)
            directory.forget("ana")
        return found

    directory = CachedDirectory(asked(slow, roster.collective_info), clock)
    directory.peer("ana")
    assert directory.peer("ana") == Peer(name="ana", addresses=("mail:ana@example.org",))
    directory.peer("ana")
    assert roster.asked.count("peer:ana") == 2, "and kept then"


def test_who_is_not_known_is_nobody_and_is_found_once_added(
    clock: ManualClock,
) -> None:
    roster = Roster()
    directory = cached(roster, clock)
    assert directory.peer("lea") is None
    assert directory.policy_of("nobody") is None
    assert directory.member_names("nobody") == []
    roster.peers["lea"] = ("inbox:",)
    assert directory.peer("lea") is not None


def test_a_callback_that_fails_is_asked_again_later_and_nobody_is_taken_for_unknown(
    clock: ManualClock,
) -> None:
    def broken(who: Identifier) -> Peer:
        raise RuntimeError("no connection")

    directory = asked(broken, Roster().collective_info)
    with pytest.raises(SourceUnavailable) as failed:
        directory.peer("ana")
    assert failed.value.code == "people.directory_failed"


def test_a_failure_that_is_raised_often_does_not_grow(clock: ManualClock) -> None:
    def fails(_who: Identifier) -> Peer:
        raise RuntimeError("the roster is down")

    directory = CachedDirectory(asked(fails, None), clock)
    depths = []
    for _ in range(5):
        with pytest.raises(SourceUnavailable) as failed:
            directory.peer("ana")
        depths.append(len(traceback.extract_tb(failed.value.__traceback__)))
    assert depths[1] == depths[-1]


def test_members_come_sorted_and_in_slices(clock: ManualClock) -> None:
    directory = cached(Roster(), clock)
    assert directory.member_names("guards", limit=1) == ["ana"]
    assert directory.member_names("guards", after="ana") == ["ben"]


def test_the_cache_is_bounded(clock: ManualClock) -> None:
    roster = Roster()
    directory = cached(roster, clock, most=1)
    for name in ("ana", "ben", "ana"):
        directory.peer(name)
    assert roster.asked == ["peer:ana", "peer:ben", "peer:ana"]
