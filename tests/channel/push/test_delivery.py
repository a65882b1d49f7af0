"""The delivery of a push under every order of answers: nothing is lost, repeats carry the same
token. [CH-2]
"""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.push import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    AwaitMessages,
    EndPush,
    PausePush,
    PushDelivery,
    PushFailure,
    PushSubscription,
    SendMessages,
    after_empty,
    after_failure,
    after_sent,
    after_waiting,
    forget_push,
    is_refused_for_good,
    lease_minutes_left,
    load_pushes,
    next_step,
    renewed,
    save_push,
)
from rapport.channel.requests.request import Batch
from rapport.core.event import Event, StoredEvent
from rapport.store.memory import MemoryRecordStore

PUSH = PushSubscription(
    session="s",
    channel="c",
    identity="me",
    address="http://a",
    form="json",
    token="t0",
    sent=False,
    until_ms=10_000_000,
)
DOWN, REFUSED = PushFailure("unreachable", "down"), PushFailure("refused", "HTTP 400")


def stored(number: int) -> StoredEvent:
    return StoredEvent(number, 0, Event("s", str(number), "t", "", 0))


class Source:
    """Sets of messages by token `t<after>-<through>`; the log grows, tokens stay."""

    def __init__(self, most: int) -> None:
        self.last, self._most = 0, most

    def ask(self, token: str, *, seen: bool) -> Batch:
        after, through = self._range(token)
        events = () if seen else tuple(stored(n) for n in range(after + 1, through + 1))
        end = min(through + self._most, self.last)
        following = f"t{through}-{end}" if end > through else None
        return Batch(events=events, current_token=token, next_token=following)

    @staticmethod
    def _range(token: str) -> tuple[int, int]:
        after, _, through = token[1:].partition("-")
        return int(after), int(through or after)


@given(
    st.lists(
        st.sampled_from(["append", "deliver", "lose", "down", "refuse", "crash", "renew"]),
        max_size=60,
    ),
    st.integers(1, 4),
)
def test_every_message_arrives_in_order_and_repeats_carry_the_same_token(
    moves: list[str], most: int
) -> None:
    source, now, kept = Source(most), 0, PUSH
    delivery = PushDelivery(push=PUSH)
    received: list[tuple[str, tuple[int, ...]]] = []
    for move in [*moves, *["deliver"] * 200]:
        if move == "append":
            source.last += 1
            continue
        if move == "crash":
            delivery = PushDelivery(push=kept)
            continue
        if move == "renew":
            delivery = renewed(delivery, until_ms=now + 10**9, address="http://b", form="soap")
            kept = delivery.push
            continue
        step = next_step(delivery, now, longest_wait_ms=1_000)
        if isinstance(step, PausePush):
            now += step.wait_ms
        elif isinstance(step, AwaitMessages):
            delivery = after_waiting(delivery, source.ask(step.token, seen=True))
        elif isinstance(step, SendMessages):
            batch = source.ask(step.token, seen=False)
            if not batch.events:
                delivery = after_empty(delivery, batch)
            elif move in ("down", "refuse"):
                failed = DOWN if move == "down" else REFUSED
                delivery = after_failure(delivery, failed, now, chance=0.5)
            else:
                numbers = tuple(one.position for one in batch.events)
                received.append((batch.current_token, numbers))
                if move == "lose":  # the answer got lost: we do not know that it was received
                    delivery = after_failure(delivery, DOWN, now, chance=0.0)
                else:
                    delivery = after_sent(delivery, batch)
        else:
            raise AssertionError(step)
        kept = delivery.push
    by_token = dict(received)
    assert all(by_token[token] == numbers for token, numbers in received)
    distinct = [numbers for token, numbers in dict(received).items()]
    assert [n for numbers in distinct for n in numbers] == list(range(1, source.last + 1))
    assert all(len(numbers) <= most for numbers in distinct)
    assert delivery.push.messages <= sum(map(len, (numbers for _t, numbers in received)))


def test_pauses_grow_and_stay_bounded() -> None:
    delivery, pauses = PushDelivery(push=PUSH), []
    for _ in range(12):
        delivery = after_failure(delivery, DOWN, 0, chance=0.0)
        step = next_step(delivery, 0, longest_wait_ms=1)
        assert isinstance(step, PausePush)
        pauses.append(step.wait_ms)
    assert pauses[0] == FIRST_PAUSE_MS // 2
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_MS // 2


def test_a_batch_that_is_refused_again_and_again_is_hopeless_a_dead_receiver_never_is() -> None:
    refused = down = PushDelivery(push=PUSH)
    for _ in range(5):
        assert not is_refused_for_good(refused)
        refused = after_failure(refused, REFUSED, 0, chance=0.0)
        down = after_failure(down, DOWN, 0, chance=0.0)
    assert is_refused_for_good(refused)
    assert not is_refused_for_good(down)
    assert not is_refused_for_good(after_failure(refused, DOWN, 0, chance=0.0))


def test_the_lease_ends_it_and_renewing_wakes_it() -> None:
    delivery = PushDelivery(push=msgspec.structs.replace(PUSH, until_ms=1_000))
    assert next_step(delivery, 1_000, longest_wait_ms=1) == EndPush("its lease ran out")
    paused = after_failure(delivery, DOWN, 990, chance=0.9)
    assert next_step(paused, 990, longest_wait_ms=1) == PausePush(10)
    again = renewed(paused, until_ms=99_000, address="http://b", form="soap")
    assert next_step(again, 1_000, longest_wait_ms=1) == SendMessages("t0")
    assert (again.push.address, again.push.form) == ("http://b", "soap")


def test_the_lease_is_reported_in_minutes_that_are_never_none() -> None:
    assert lease_minutes_left(msgspec.structs.replace(PUSH, until_ms=60_001), 0) == 2
    assert lease_minutes_left(msgspec.structs.replace(PUSH, until_ms=1), 0) == 1
    assert lease_minutes_left(msgspec.structs.replace(PUSH, until_ms=0), 5) == 1


def test_records_bring_subscriptions_back() -> None:
    records = MemoryRecordStore()
    for number in range(1_200):
        save_push(records, msgspec.structs.replace(PUSH, session=f"{number:04}"))
    forget_push(records, "0007")
    found = load_pushes(records)
    assert len(found) == 1_199
    assert found[0] == msgspec.structs.replace(PUSH, session="0000")
