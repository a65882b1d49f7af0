"""What a guess made of each column, for people. [ME-11, ME-13]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.cli.terminal import stderr
from rapport.mediation.concepts import KEY, TIME
from rapport.mediation.guessing.columns import Column
from rapport.mediation.guessing.concept_match import ConceptMatch
from rapport.mediation.guessing.guess import Guess


def show_summary(guess: Guess, becoming: ConceptMatch) -> None:
    """A table of the columns on stderr, and how much is left to settle."""
    from rich.table import Table
    from rich.text import Text

    title = f"{guess.rows:,} rows as {guess.format}, about: {becoming.concept}"
    table = Table(title=title, title_justify="left")
    for heading in ("column", "taken for", "unit", "becomes", "unsure of"):
        table.add_column(heading, no_wrap=heading == "becomes")
    open_questions = len(guess.doubts)
    for column, unit, doubts in _rows(guess, becoming):
        open_questions += len(doubts)
        becomes = _becomes(guess, becoming, column)
        cells = (column.name, guess.uses[column.name], unit, becomes, "; ".join(doubts))
        table.add_row(*(Text(cell) for cell in cells))
    console = stderr()
    console.print(table)
    for doubt in guess.doubts:
        console.print(f"unsure: {doubt}", soft_wrap=True, markup=False)
    if guess.key is None:
        console.print("unsure: no column says whom a row is about")
    left = open_questions + (guess.key is None)
    console.print("1 question is left to settle" if left == 1 else f"{left} questions are left")


def _becomes(guess: Guess, becoming: ConceptMatch, column: Column) -> str:
    """The attribute of the concept; in brackets while something must be settled before."""
    use = guess.uses[column.name]
    if use in ("time", "identity"):
        return TIME if use == "time" else KEY
    match = becoming.matches.get(column.path)
    if match is None or not match.fits:
        return ""
    is_settled = match.taken and match.sure
    return match.attribute if is_settled else f"({match.attribute})"


def _rows(guess: Guess, becoming: ConceptMatch) -> Iterator[tuple[Column, str, tuple[str, ...]]]:
    values = {value.column.path: value.unit for value in guess.values}
    for column in guess.columns:
        if guess.time is not None and column.path == guess.time.columns[0]:
            yield column, "", guess.time.doubts
        elif guess.key is not None and column.path == guess.key.field:
            yield column, "", guess.key.doubts
        elif column.path in values:
            unit = values[column.path]
            match = becoming.matches[column.path]
            doubts = [] if unit.sure else [unit.because]
            doubts += [] if match.sure or match.because in doubts else [match.because]
            yield column, unit.unit, tuple(doubts)
        else:
            yield column, "", ()
