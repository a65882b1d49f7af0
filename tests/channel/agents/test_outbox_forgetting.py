"""Rejected events are forgotten one by one or all together; what waits stays. [CH-5]"""

from __future__ import annotations

import pytest

from rapport.channel.agents.connection import Reason
from rapport.channel.agents.outbox import Outbox, RejectedEvent, forget_rejected, inspect_outbox
from rapport.cli.main import run
from rapport.core.errors import StoreUnavailable, UnknownName
from rapport.core.event import Event


def fill(directory, clock) -> None:
    outbox = Outbox(directory, clock, new_name="p")
    outbox.add([Event("s", str(n), "t", "", 0, b"{}") for n in range(1, 6)])
    for sequence in (1, 2, 3):
        rejected = RejectedEvent(
            sequence=sequence,
            time=0,
            reason=Reason("event.bad", "no"),
            event=Event("s", str(sequence), "t", "", 0, b"{}"),
        )
        outbox.settle(sequence, rejected)
    outbox.close()


def rejected_in(directory) -> list[int]:
    return [one.sequence for one in inspect_outbox(directory).rejected]


def test_rejected_events_are_forgotten_and_those_that_wait_are_not(tmp_path, clock):
    fill(tmp_path, clock)
    assert forget_rejected(tmp_path, clock, [2]) == [2]
    assert rejected_in(tmp_path) == [1, 3]
    assert forget_rejected(tmp_path, clock) == [1, 3]
    assert rejected_in(tmp_path) == []
    assert inspect_outbox(tmp_path).pending == 2
    assert forget_rejected(tmp_path, clock) == []
    again = Outbox(tmp_path, clock, new_name="p")
    assert (again.rejected_count, again.last, again.settled) == (0, 5, 3)
    with pytest.raises(StoreUnavailable):
        forget_rejected(tmp_path, clock)
    again.close()


def test_one_that_was_rejected_after_the_others_were_forgotten_is_kept(tmp_path, clock):
    fill(tmp_path, clock)
    forget_rejected(tmp_path, clock)
    outbox = Outbox(tmp_path, clock, new_name="p")
    event = Event("s", "4", "t", "", 0, b"{}")
    reason = Reason("event.bad", "no")
    outbox.settle(4, RejectedEvent(sequence=4, time=0, reason=reason, event=event))
    outbox.close()
    assert rejected_in(tmp_path) == [4]


def test_what_was_not_rejected_cannot_be_forgotten(tmp_path, clock):
    fill(tmp_path, clock)
    with pytest.raises(UnknownName):
        forget_rejected(tmp_path, clock, [4])
    with pytest.raises(UnknownName):
        forget_rejected(tmp_path / "nothing", clock)
    assert run(["outbox", "forget", str(tmp_path)]) == 2
    assert run(["outbox", "forget", str(tmp_path), "1", "3"]) == 0
    assert rejected_in(tmp_path) == [2]
    assert run(["outbox", "forget", str(tmp_path), "--all"]) == 0
    assert rejected_in(tmp_path) == []
