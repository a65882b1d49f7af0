"""Delivering one push subscription: what to do next, and what an outcome changes. [CH-2]

A pure state machine: time and chance are arguments, `node/push.py` carries out the steps. Order
and "at least once" follow from three rules: the set of a token is sent until the receiver has
taken it; only then the subscription moves on to the next token, durably; a batch is never kept, its
token gives it again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.channel.push.records import Form, Push
from rapport.channel.requesting.batch import Batch

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 500, 60_000
MOST_REFUSALS = 5
"""A batch that the receiver refuses this often for what it is (HTTP 400, 413, 422) is set aside."""
_MINUTE_MS = 60_000

Trouble = Literal["unreachable", "refused", "gone"]


class Failed(msgspec.Struct, frozen=True):
    """The receiver has not taken a batch: not now, not this one, or nothing any more."""

    trouble: Trouble
    why: str


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription at work. `push` is what is durable; the rest begins anew after a restart."""

    push: Push
    failures: int = 0
    """In a row."""
    refusals: int = 0
    not_before_ms: int = 0
    trouble: str = ""
    """Why the last attempt failed; empty when it did not."""


class Look(msgspec.Struct, frozen=True):
    """Ask whether there is a set after the token's, waiting for one."""

    token: str
    wait_ms: int


class Send(msgspec.Struct, frozen=True):
    """Fetch the token's messages and send them."""

    token: str


class Pause(msgspec.Struct, frozen=True):
    """Wait before the next attempt."""

    wait_ms: int


class End(msgspec.Struct, frozen=True):
    """Forget the subscription."""

    why: str


Step = Look | Send | Pause | End


def next_step(delivery: Delivery, now_ms: int, *, longest_wait_ms: int) -> Step:
    """What is to be done now."""
    push = delivery.push
    left_ms = push.until_ms - now_ms
    if left_ms <= 0:
        return End("its lease ran out")
    pause_ms = delivery.not_before_ms - now_ms
    if 0 < pause_ms <= LONGEST_PAUSE_MS:  # no pause is longer: then the clock was set back
        return Pause(min(pause_ms, left_ms))
    if push.sent:
        return Look(push.token, min(left_ms, longest_wait_ms))
    return Send(push.token)


def after_look(delivery: Delivery, batch: Batch) -> Delivery:
    """The source answered how to go on: there may be a set to send now."""
    if batch.next_token is None:
        return delivery
    return _moved(delivery, token=batch.next_token, sent=False)


def after_nothing(delivery: Delivery, batch: Batch) -> Delivery:
    """The token's set held nothing to send: it was empty, or its messages are gone."""
    if batch.next_token is None:
        return _moved(delivery, token=batch.current_token, sent=True)
    return _moved(delivery, token=batch.next_token, sent=False)


def after_sent(delivery: Delivery, batch: Batch) -> Delivery:
    """The receiver has the batch (or it was set aside): on to the next."""
    push = delivery.push
    counted = msgspec.structs.replace(
        push, batches=push.batches + 1, messages=push.messages + len(batch.events)
    )
    moved = after_nothing(msgspec.structs.replace(delivery, push=counted), batch)
    return msgspec.structs.replace(moved, failures=0, refusals=0, not_before_ms=0, trouble="")


def after_failure(delivery: Delivery, failed: Failed, now_ms: int, *, chance: float) -> Delivery:
    """The receiver has not taken the batch: again, later each time. `chance` lies in [0, 1)."""
    failures = delivery.failures + 1
    pause_ms = min(FIRST_PAUSE_MS * 2 ** min(failures - 1, 20), LONGEST_PAUSE_MS)
    return msgspec.structs.replace(
        delivery,
        failures=failures,
        refusals=delivery.refusals + 1 if failed.trouble == "refused" else 0,
        not_before_ms=now_ms + int(pause_ms * (0.5 + chance / 2)),
        trouble=failed.why,
    )


def is_hopeless(delivery: Delivery) -> bool:
    """Whether the batch is to be set aside, so that those behind it get through."""
    return delivery.refusals >= MOST_REFUSALS


def renewed(delivery: Delivery, *, until_ms: int, address: str, form: Form) -> Delivery:
    """The subscriber asked for more time, perhaps at another address; its place stays."""
    push = msgspec.structs.replace(delivery.push, until_ms=until_ms, address=address, form=form)
    return msgspec.structs.replace(delivery, push=push, not_before_ms=0)


def lease_minutes_left(push: Push, now_ms: int) -> int:
    """Whole minutes of lease that are left, at least one while there is any."""
    return max(-(-(push.until_ms - now_ms) // _MINUTE_MS), 1)


def _moved(delivery: Delivery, *, token: str, sent: bool) -> Delivery:
    push = msgspec.structs.replace(delivery.push, token=token, sent=sent)
    return msgspec.structs.replace(delivery, push=push)
