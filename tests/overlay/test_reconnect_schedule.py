"""What a member remembers of others is bounded, and the silent are asked again. [CX-4]"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from rapport.kernel.clock import Chance
from rapport.overlay.membership import Membership
from rapport.overlay.membership_steps import (
    PARTING,
    IsolationNotice,
    MembershipSettings,
    SendDeparted,
    SendJoin,
    SendPing,
)
from rapport.overlay.neighbour_search import KnownMembers, ReconnectSchedule
from rapport.transport.base import Address, Now

At = Callable[[float], Now]
OWN = ("own", 1)


def address(number: int) -> Address:
    return ("b", number)


def test_the_first_learned_gives_way_and_oneself_is_never_known() -> None:
    known = KnownMembers(OWN, 3)
    assert known.learn([OWN, address(1), address(2)])
    assert not known.learn([address(2), OWN])
    assert known.learn([address(3), address(4)])
    assert known.besides((address(3),)) == [address(2), address(4)]
    known.forget(address(2))
    assert len(known) == 2


def test_one_silent_one_is_asked_at_a_time_until_it_is_back(at: At) -> None:
    revisiting = ReconnectSchedule(MembershipSettings(revisit_ms=2_000), Chance(1), count(1))
    assert revisiting.next_due_ms() is None
    revisiting.fell_silent(address(1), at(0))
    revisiting.fell_silent(address(2), at(500))
    assert revisiting.tick(at(1_999)) == []
    (ping,) = revisiting.tick(at(2_000))
    assert not revisiting.answered(ping.to, ping.number + 1)
    assert revisiting.answered(ping.to, ping.number)
    assert not revisiting.answered(ping.to, ping.number), "once"
    assert ping.to in revisiting
    revisiting.forget(address(1))
    revisiting.forget(address(2))
    assert revisiting.tick(at(4_000)) == []
    assert revisiting.next_due_ms() is None


def test_the_silent_are_bounded(at: At) -> None:
    revisiting = ReconnectSchedule(MembershipSettings(known=5), Chance(1), count(1))
    for number in range(20):
        revisiting.fell_silent(address(number), at(0))
    assert [number for number in range(20) if address(number) in revisiting] == [
        15, 16, 17, 18, 19,
    ]  # fmt: skip


def test_a_member_that_has_left_declines_a_late_welcome(at: At) -> None:
    member = Membership(OWN, MembershipSettings(), Chance(1))
    member.connect([address(1)], at(0))
    assert member.leave(at(10)) == [IsolationNotice(0, 1)], (
        "nothing is said, but the search has ended"
    )
    late = member.welcomed(address(1), True, (), at(20))
    assert [(step.to, step.ttl) for step in late if isinstance(step, SendDeparted)] == [
        (address(1), PARTING)
    ]
    assert member.neighbours == ()


def test_a_welcome_that_comes_after_the_search_ended_still_counts(at: At) -> None:
    member = Membership(OWN, MembershipSettings(), Chance(1))
    member.connect([address(1)], at(0))
    for time in (200, 600, 1_400):
        member.tick(at(time))
    assert member.neighbours == ()
    member.welcomed(address(1), True, (), at(1_500))
    assert member.neighbours == (address(1),)


def test_a_departure_is_not_carried_further_than_this_member_would_send_one(at: At) -> None:
    """Whoever writes a huge ttl does not flood the network."""
    member = Membership(OWN, MembershipSettings(departure_ttl=2), Chance(1))
    member.adopt([address(number) for number in range(4)], at(0))
    steps = member.departed(address(9), 1, 1_000_000, True, address(0), at(0))
    assert {step.ttl for step in steps if isinstance(step, SendDeparted)} == {1}
    assert len(steps) == 3


def test_one_left_with_a_single_neighbour_asks_it_whom_it_knows(at: At) -> None:
    member = Membership(OWN, MembershipSettings(), Chance(1))
    member.adopt([address(1), address(2)], at(0))
    steps = member.departed(address(2), 1, 1, False, address(2), at(10))
    assert [step.to for step in steps if isinstance(step, SendJoin)] == [address(1)]
    member.welcomed(address(1), True, (OWN, address(3)), at(20))
    steps = member.tick(at(20))
    assert [step.to for step in steps if isinstance(step, SendPing)] == [address(3)]
