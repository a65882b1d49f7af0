"""What people read of an answer that is not in yet. [PO-11]"""

from __future__ import annotations

from typing import Any

from rich.console import Console

from rapport.cli.explain import show_answer
from rapport.policy.explain.answer import (
    AnswerNote,
    Candidate,
    ConditionNode,
    NearestMiss,
    ShownReading,
    Suppression,
    WhyNotAnswer,
)

OPEN = ConditionNode(text="A is inside R for 1 h", truth="true")


def test_what_is_not_decided_yet_has_neither_failed_nor_been_missed() -> None:
    waiting = Candidate(bindings={"A": "guest"}, became="pending", time=0, clauses=(OPEN,))
    note = AnswerNote(kind="told", text="not decided yet: that comes at 01:00")
    answer = WhyNotAnswer(
        policy="stays",
        version="1",
        at=0,
        within_ms=60_000,
        given={"A": "guest"},
        fired=(),
        candidates=(waiting,),
        notes=(note,),
    )
    console = Console(width=100)
    with console.capture() as shown:
        show_answer(console, answer)
    text = shown.get()
    assert text.startswith("stays has not fired yet for A = guest around ")
    assert "A = guest  is not decided yet, 1 of 1 conditions held" in text
    assert "· not decided yet: that comes at 01:00" in text
    assert "Nearest miss" not in text


def shown(answer: WhyNotAnswer) -> str:
    console = Console(width=200)
    with console.capture() as text:
        show_answer(console, answer)
    return text.get()


def answer_of(candidate: Candidate, **more: Any) -> WhyNotAnswer:
    return WhyNotAnswer(
        policy="stays",
        version="1",
        at=0,
        within_ms=60_000,
        given={"A": "guest"},
        fired=(),
        candidates=(candidate,),
        **more,
    )


def test_what_was_suppressed_held_and_was_neither_missed_nor_refuted() -> None:
    limit = ConditionNode(
        text="at most once per 10 min",
        truth="false",
        because="A = guest was detected at 00:00:00, detection d1; "
        "the next is emitted from 00:10:00 on",
    )
    candidate = Candidate(
        bindings={"A": "guest"},
        became="left out",
        time=300_000,
        clauses=(OPEN, limit),
        suppressed_by=Suppression(detection="d1", time=0, until=600_000),
    )
    text = shown(answer_of(candidate))
    assert text.startswith("stays did not fire again for A = guest around ")
    assert "A = guest  held, but was suppressed\n" in text
    assert "detection d1; the next is emitted from 00:10:00 on" in text
    assert "conditions held" not in text
    assert "Nearest miss" not in text


def test_what_was_told_and_does_not_hold_now_is_not_said_not_to_have_fired() -> None:
    failed = ConditionNode(text="A is inside R", truth="false")
    candidate = Candidate(bindings={}, became="incomplete", time=0, clauses=(failed,))
    note = AnswerNote(
        kind="told", text="it was told at 01:00; the readings have changed", event="d1"
    )
    text = shown(answer_of(candidate, notes=(note,)))
    assert text.startswith("stays would not fire by what is on record now for A = guest")
    assert "did not fire" not in text


def test_ids_of_rows_are_shown_whole_and_the_zone_is_said_once() -> None:
    id = f"{'ab' * 32}:1234"
    reading = ShownReading(
        id=id,
        time=0,
        stream="person.position",
        key="guest",
        value=(1.0, 2.0),
        text="position of guest = 1, 2 m",
        source="readers",
    )
    failed = ConditionNode(text="A is inside R", truth="false", readings=(reading,))
    candidate = Candidate(bindings={}, became="incomplete", time=0, clauses=(failed,))
    miss = NearestMiss(reading=reading, text="guest slightly nearer", relative=1e-9)
    text = shown(answer_of(candidate, nearest=miss))
    assert text.count(id) == 2
    assert text.count("UTC") == 1
    assert "a change of less than 0.01 %" in text
