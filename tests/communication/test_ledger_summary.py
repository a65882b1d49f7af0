"""The ledger in a sentence: each person counts once per message, by the furthest that is known."""

from __future__ import annotations

from typing import Any

import pytest

from rapport.communication.ledger_rows import LedgerRow, fates_of, summarise

_COUNT = iter(range(1, 10_000))


def row(peer: str, state: str, address: str = "", **fields: Any) -> LedgerRow:
    given: dict[str, Any] = {
        "message": "m1",
        "adapter": address.partition(":")[0],
        "time": 1,
        "attempt": 1,
        "reason": "",
        "answer": "",
        "until": 0,
        "policy": "",
        "detection": "",
        "position": next(_COUNT),
    }
    return LedgerRow(peer=peer, state=state, address=address, **given | fields)


def test_three_were_told_two_answered_and_one_had_no_address() -> None:
    rows = [
        row("ana", "handed", "mail:ana"),
        row("ana", "answered", answer="yes"),
        row("ben", "confirmed", "inbox:"),
        row("ben", "answered", answer="no"),
        row("lea", "failed", "mail:lea", reason="refused"),
        row("lea", "handed", "inbox:"),
        row("lea", "timed_out"),
        row("tom", "failed", reason="peer.no_address"),
    ]
    assert summarise(rows).sentence() == "3 told, 2 answered, 1 not reached: no address"
    assert [(fate.peer, fate.fate, fate.answer, fate.by) for fate in fates_of(rows)] == [
        ("ana", "answered", "yes", ["mail:ana"]),
        ("ben", "answered", "no", ["inbox:"]),
        ("lea", "told", "", ["inbox:"]),
        ("tom", "not reached", "", []),
    ]


@pytest.mark.parametrize(
    ("rows", "fate"),
    [
        ([("held", "")], "held"),
        ([("refused", "")], "refused"),
        ([("queued", "mail:a")], "waiting"),
        ([("failed", "mail:a"), ("queued", "inbox:")], "waiting"),
        ([("unknown", "mail:a")], "in doubt"),
        ([("failed", "mail:a")], "not reached"),
        ([("closed", "mail:a")], "not reached"),
        ([("timed_out", "")], "not reached"),
        ([("unknown", "mail:a"), ("handed", "inbox:")], "told"),
        ([("answered", "")], "answered"),
    ],
)
def test_one_fate_is_never_reported_as_another(rows: list[tuple[str, str]], fate: str) -> None:
    (found,) = fates_of([row("ana", state, address) for state, address in rows])
    assert found.fate == fate


def test_a_failure_that_is_tried_again_is_waiting() -> None:
    (found,) = fates_of([row("ana", "failed", "mail:a", until=99, reason="busy")])
    assert (found.fate, found.reason) == ("waiting", "busy")


def test_the_same_person_counts_once_for_each_message() -> None:
    rows = [row("ana", "handed", "inbox:"), row("ana", "handed", "inbox:", message="m2")]
    assert summarise(rows).told == 2
    assert summarise([]).sentence() == "0 told, 0 answered"
