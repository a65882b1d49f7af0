"""Who people are, asked of an application: by functions and coroutines, from worker threads. [CO-3,
CO-15]
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rapport.communication.api import Collective, Identifier, NoSuchCollective, Peer
from rapport.communication.directory_callbacks import MOST_HANGING, CallbackDirectory, Callbacks
from rapport.communication.peers import SiteDirectory
from rapport.core.errors import SourceUnavailable
from rapport.kernel.clock import Clock, ManualClock, SystemClock

ANA = Peer(name="ana", addresses=("inbox:",))
CREW = Collective(name="crew", members=("ana", "ben"))
OWN = SiteDirectory({"ana": ANA}, {"crew": CREW})


def asking(
    work: Callable[[CallbackDirectory], Any],
    *,
    deadline: float = 0.2,
    clock: Clock | None = None,
    **callbacks: Any,
) -> Any:
    """What comes of asking from a worker thread, as the engine does."""

    async def scenario() -> Any:
        loop = asyncio.get_running_loop()
        directory = CallbackDirectory(
            OWN,
            Callbacks(**callbacks),
            loop,
            clock=clock or SystemClock(),
            deadline_seconds=deadline,
        )
        return await asyncio.to_thread(work, directory)

    return asyncio.run(scenario())


def test_known_peers_are_not_looked_up_by_callbacks() -> None:
    def never(who: Identifier) -> None:
        pytest.fail(f"asked for {who}")

    def work(directory: CallbackDirectory) -> None:
        assert directory.peer("ana") is ANA
        assert directory.policy_of("crew") is CREW
        assert directory.policy_of("crew") is CREW
        assert directory.member_names("crew", after="ana") == ["ben"]

    asking(work, peer_info=never, collective_info=never)


def test_without_callbacks_others_are_nobody() -> None:
    def work(directory: CallbackDirectory) -> None:
        assert directory.peer("zoe") is None
        assert directory.policy_of("watch") is None
        assert directory.member_names("watch") == []

    asking(work, authenticate=lambda _peer, _password: True)


def test_members_are_sliced_sorted_and_named_once() -> None:
    async def watch(who: Identifier) -> Collective:
        if who.name != "watch":
            raise NoSuchCollective(who.name)
        return Collective(name="watch", members=("c", "a", "b", "a"))

    def work(directory: CallbackDirectory) -> None:
        assert directory.member_names("watch", limit=2) == ["a", "b"]
        assert directory.member_names("watch", after="b", limit=2) == ["c"]
        assert directory.member_names("other") == []
        assert directory.policy_of("other") is None

    asking(work, collective_info=watch)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "zoe"},
        Peer(name="", addresses=("inbox:",)),
        Peer(name="zoe", addresses=None),  # type: ignore[arg-type]
        Peer(name="zoe", addresses=("inbox:",), delivery="by-owl"),  # type: ignore[arg-type]
    ],
    ids=["kind", "name", "addresses", "delivery"],
)
def test_what_can_be_no_peer_is_no_answer(wrong: Any) -> None:
    def work(directory: CallbackDirectory) -> None:
        assert code_of(lambda: directory.peer("zoe")) == "people.bad_answer"

    asking(work, peer_info=lambda _who: wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        ["ana"],
        Collective(name="watch", members="ana"),  # type: ignore[arg-type]
        Collective(name="watch", members=("ana", None)),  # type: ignore[arg-type]
        Collective(name="watch", members=("ana",), delivery="some"),  # type: ignore[arg-type]
        Collective(name="watch", members=("ana",), delivery="at-least", least=2**64),
    ],
    ids=["kind", "text", "members", "delivery", "least"],
)
def test_what_can_be_no_collective_is_no_answer(wrong: Any) -> None:
    def work(directory: CallbackDirectory) -> None:
        assert code_of(lambda: directory.policy_of("watch")) == "people.bad_answer"
        assert code_of(lambda: directory.member_names("watch")) == "people.bad_answer"

    asking(work, collective_info=lambda _who: wrong)


def test_a_coroutine_that_takes_too_long_is_given_up() -> None:
    ended: list[bool] = []

    async def slow(_who: Identifier) -> Peer:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        raise AssertionError

    def work(directory: CallbackDirectory) -> None:
        with pytest.raises(SourceUnavailable) as failed:
            directory.peer("zoe")
        assert failed.value.code == "people.directory_slow"

    asking(work, peer_info=slow)
    assert ended == [True]


def code_of(ask: Callable[[], object]) -> str:
    with pytest.raises(SourceUnavailable) as failed:
        ask()
    return failed.value.code or ""


def test_a_function_that_hangs_is_not_called_again_and_its_late_answer_counts() -> None:
    asked: list[str] = []
    let_go = threading.Event()

    def roster(who: Identifier) -> Collective:
        asked.append(who.name)
        if who.name == "watch":
            let_go.wait(30)
        return Collective(name=who.name, members=("ana",))

    def work(directory: CallbackDirectory) -> None:
        for _ in range(3):
            assert code_of(lambda: directory.policy_of("watch")) == "people.directory_slow"
        assert directory.policy_of("other") is not None, "others are asked meanwhile"
        assert asked == ["watch", "other"]
        let_go.set()
        for _ in range(2_000):
            try:
                found = directory.policy_of("watch")
                break
            except SourceUnavailable:
                time.sleep(0.005)
        assert found is not None
        assert found.members == ("ana",)
        assert asked == ["watch", "other"]
        directory.policy_of("watch")
        assert asked == ["watch", "other", "watch"], "a late answer is given once"

    asking(work, collective_info=roster)


def test_with_many_calls_hanging_no_other_is_made() -> None:
    asked: list[str] = []
    let_go = threading.Event()

    def roster(who: Identifier) -> None:
        asked.append(who.name)
        let_go.wait(30)

    def work(directory: CallbackDirectory) -> None:
        for number in range(MOST_HANGING + 3):
            name = f"watch{number}"
            assert code_of(lambda name=name: directory.policy_of(name)) == "people.directory_slow"
        assert len(asked) == MOST_HANGING
        let_go.set()

    asking(work, deadline=0.01, collective_info=roster)


def test_a_call_that_is_given_up_is_made_again() -> None:
    asked: list[str] = []
    let_go = threading.Event()
    clock = ManualClock(1_000)

    def roster(who: Identifier) -> None:
        asked.append(who.name)
        if len(asked) == 1:
            let_go.wait(30)

    def work(directory: CallbackDirectory) -> None:
        assert code_of(lambda: directory.policy_of("watch")) == "people.directory_slow"
        clock.set_ms(30_000)
        assert code_of(lambda: directory.policy_of("watch")) == "people.directory_slow"
        clock.set_ms(62_000)
        assert directory.policy_of("watch") is None
        assert asked == ["watch", "watch"]
        let_go.set()

    asking(work, clock=clock, collective_info=roster)


def test_a_coroutine_is_not_waited_for_in_its_own_loop() -> None:
    async def peer(_who: Identifier) -> Peer:
        return ANA

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        directory = CallbackDirectory(OWN, Callbacks(peer_info=peer), loop)
        with pytest.raises(SourceUnavailable) as failed:
            directory.peer("zoe")
        assert failed.value.code == "people.in_the_loop"

    asyncio.run(scenario())
