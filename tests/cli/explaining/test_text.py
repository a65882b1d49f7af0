"""What people read of an answer that is not in yet. [PO-11]"""

from __future__ import annotations

from rich.console import Console

from rapport.cli.explaining.text import show_answer
from rapport.policy.explaining.verdict import Answer, Candidate, Node, Note

OPEN = Node(text="A is inside R for 1 h", truth="true")


def test_what_is_not_decided_yet_has_neither_failed_nor_been_missed() -> None:
    waiting = Candidate(bindings={"A": "guest"}, became="pending", time=0, clauses=(OPEN,))
    note = Note(kind="told", text="not decided yet: that comes at 01:00")
    answer = Answer(
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
