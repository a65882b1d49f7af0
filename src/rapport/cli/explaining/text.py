"""Answers to "why" and "why not" on a terminal: marks, values, times from one moment. [PO-11]"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapport.core.times import format_time
from rapport.policy.explain.answer import (
    Candidate,
    ConditionNode,
    ExternalFact,
    ShownReading,
    Truth,
    WhyNotAnswer,
)
from rapport.policy.explain.wording import bindings_text, duration, relative

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

_MARKS: dict[Truth, tuple[str, str]] = {
    "true": ("✓", "green"),
    "false": ("✗", "bold red"),
    "unknown": ("?", "yellow"),
}
_BECAME = {
    "detected": "fired",
    "pending": "is not decided yet",
    "undecided": "left open",
    "left out": "held, but was suppressed",
    "not run": "held, but the policy did not run then",
    "refuted": "was given up",
    "incomplete": "was not complete",
}


def show_answer(console: Console, answer: WhyNotAnswer) -> None:
    """Headline, the best candidates as trees, the nearest miss, and what else bears on it."""
    from rich.text import Text

    console.print(_headline(answer))
    for number, candidate in enumerate(answer.fired or answer.candidates):
        if number == 0:
            console.print()
            console.print(candidate_tree(candidate))
        else:
            console.print(_short(candidate), soft_wrap=True)
    if not answer.fired and not any(_is_met(one) for one in answer.candidates[:1]):
        console.print()
        console.print(_miss(answer), soft_wrap=True)
    if answer.notes:
        console.print(Text("\nAround it", style="bold"))
    for note in answer.notes:
        when = "" if note.time is None else f"{format_time(note.time)} "
        console.print(Text.assemble(("  · ", "dim"), (when, "dim"), note.text), soft_wrap=True)


def _is_met(candidate: Candidate) -> bool:
    """Whether no condition was missed: something else kept it from firing."""
    return candidate.became == "left out" or candidate.first_failed is None


def _outcome(candidate: Candidate) -> str:
    """What became of a candidate, in words that agree with the conditions that held."""
    if candidate.became == "incomplete" and _is_met(candidate):
        return "held, but fewer of its readings were a match already"
    if candidate.became == "left out":  # what suppressed it is shown like a condition, and is none
        return _BECAME[candidate.became]
    held = sum(node.truth == "true" for node in candidate.clauses)
    return f"{_BECAME[candidate.became]}, {held} of {len(candidate.clauses)} conditions held"


def candidate_tree(candidate: Candidate) -> Tree:
    """The conditions of a policy with who and what they rest on."""
    from rich.text import Text
    from rich.tree import Tree

    head = Text.assemble(
        (bindings_text(candidate.bindings) or "nobody in particular", "bold"),
        f"  {_outcome(candidate)}\n",
        (f"times in UTC, counted from {format_time(candidate.time)}", "dim"),
    )
    tree = Tree(head)
    shown: set[str] = set()
    for node in candidate.clauses:
        _grow(tree, node, candidate.time, shown)
    for known in candidate.known:
        tree.add(_known(known, candidate.time))
    if candidate.detection is not None and candidate.became == "detected":
        after = relative(candidate.detection.time - candidate.time)
        told = f"told at {format_time(candidate.detection.time)} ({after})"
        tree.add(Text.assemble((told, "dim")))
    return tree


def _grow(tree: Tree, node: ConditionNode, reference: int, shown: set[str]) -> None:
    """`shown`: readings whose raw form was told already."""
    from rich.text import Text

    mark, style = _MARKS[node.truth]
    label = Text.assemble((f"{mark} ", style), (node.text, "bold"))
    if node.because:
        label.append(f"\n  {node.because}")
    branch = tree.add(label)
    for reading in node.readings:
        branch.add(_reading(reading, reference, is_known=reading.id in shown))
        shown.add(reading.id)
    for child in node.children:
        _grow(branch, child, reference, shown)


def _reading(reading: ShownReading, reference: int, *, is_known: bool) -> Text:
    from rich.text import Text

    line = Text.assemble(
        reading.text,
        (f"  {relative(reading.time - reference)}", "cyan"),
        (f"  {reading.source}, {reading.id}", "dim"),
    )
    if reading.raw and not is_known:
        line.append(f"\nreceived as {reading.raw}", "dim")
    return line


def _known(known: ExternalFact, reference: int) -> Text:
    from rich.text import Text

    return Text.assemble(
        ("· " if known.is_known else "? ", "green" if known.is_known else "yellow"),
        known.text,
        (f"  {relative(known.time - reference)}", "cyan"),
        (f"\n  {known.told}", "dim"),
    )


def _headline(answer: WhyNotAnswer) -> Text:
    from rich.text import Text

    about = f" for {bindings_text(answer.given)}" if answer.given else ""
    around = f"{format_time(answer.at)} ± {duration(answer.within_ms)}"
    if answer.fired:
        times = f" {len(answer.fired)} times" if len(answer.fired) > 1 else ""
        said: tuple[str, str] = (f"fired{times}", "bold green")
    elif any(one.became == "pending" for one in answer.candidates[:1]):
        said = ("has not fired yet", "bold yellow")
    elif any(one.became == "left out" for one in answer.candidates[:1]):
        said = ("did not fire again", "bold yellow")
    elif any(note.kind == "told" and note.event for note in answer.notes):
        said = ("would not fire by what is on record now", "bold yellow")
    else:
        said = ("did not fire", "bold red")
    return Text.assemble((answer.policy, "bold"), " ", said, f"{about} around {around}")


def _short(candidate: Candidate) -> Text:
    """Further candidates in a line or two."""
    from rich.text import Text

    if candidate.became == "detected" and candidate.detection is not None:
        told = f"  fired too, told at {format_time(candidate.detection.time)}"
        return Text.assemble((bindings_text(candidate.bindings), "bold"), told)
    label = Text.assemble(
        ("\n" + (bindings_text(candidate.bindings) or "nobody in particular"), "bold"),
        f"  {_outcome(candidate)}",
    )
    failed = candidate.first_failed
    if failed is not None:
        mark, style = _MARKS[failed.truth]
        label.append(f"\n  {mark} ", style)
        label.append(failed.text)
        label.append(f": {failed.because}" if failed.because else "", "dim")
    return label


def _miss(answer: WhyNotAnswer) -> Text:
    from rich.text import Text

    if answer.nearest is not None:
        share = 100 * answer.nearest.relative
        size = f"{share:.2g} %" if share < 100 else "another value"
        size = "less than 0.01 %" if share < 0.01 else size
        return Text.assemble(
            ("Nearest miss: ", "bold"),
            f"{answer.nearest.text}, and it would have fired",
            (f"  (a change of {size}; reading {answer.nearest.reading.id})", "dim"),
        )
    failed = answer.failed
    if failed > 1:
        why = f"{failed} conditions failed; no change of a single value would have been enough"
    else:
        why = "no change of a single value that was read would have been enough"
    return Text.assemble(("Nearest miss: ", "bold"), f"none; {why}")
