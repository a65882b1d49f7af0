"""Output of commands: tables and errors for people, JSON for programs; NO_COLOR is respected.
[UX-3]

Also handles standard streams that are closed, full or lose their reader (`| head`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.cli.hints import cannot_write, with_hint
from rapport.core.errors import Problem, RapportError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from rapport.core.event import Gap

_HARMLESS = "\n\u200c\u200d"
"""Line breaks, and what joins letters and emoji."""


def stdout() -> Console:
    """Where data for people goes."""
    from rapport.cli.console import PlainConsole

    return PlainConsole(width=None if sys.stdout.isatty() else 200)


def stderr() -> Console:
    """Where everything that is not data goes; names in brackets are no markup."""
    from rapport.cli.console import PlainConsole

    return PlainConsole(stderr=True, markup=False)


def print_line(line: str | Text) -> None:
    """A line for people on stdout, not wrapped; brackets are no markup."""
    stdout().print(line, markup=False, soft_wrap=True)


def print_note(line: str | Text) -> None:
    """A line on stderr, not wrapped; brackets are no markup."""
    stderr().print(line, soft_wrap=True)


def write_json(value: Any) -> None:
    """One JSON value and a newline on stdout."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.flush()


def write_bytes(raw: bytes) -> None:
    """Bytes on stdout as they are."""
    sys.stdout.buffer.write(raw)
    sys.stdout.flush()


def write_result(raw: bytes, out: Path | None) -> None:
    """Bytes to a file, on stdout without one; raises InvalidInput when it cannot be written."""
    if out is None:
        write_bytes(raw)
        return
    try:
        out.write_bytes(raw)
    except OSError as error:
        raise cannot_write(out, error) from None


def write_gaps(gaps: Sequence[Gap], *, as_json: bool) -> None:
    """What a channel could not give, a line each on stderr: stdout has events and nothing else."""
    for gap in gaps:
        line = f"positions {gap.first} to {gap.last} cannot be read: {gap.reason}"
        if as_json:
            line = msgspec.json.encode({"gap": gap}).decode()
        print_note(line)


def visible(text: str) -> str:
    """The text with what would steer a terminal (escape sequences, marks that turn the direction)
    shown instead of done; line breaks stay.

    >>> visible("red \\x1b[31m, back \\u202e")
    'red \\\\x1b[31m, back \\\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(letter if _is_harmless(letter) else _spelled(letter) for letter in text)


def _is_harmless(letter: str) -> bool:
    return letter.isprintable() or letter in _HARMLESS


def _spelled(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def write_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; plain tab-separated lines when it is not a terminal."""
    if sys.stdout.isatty():
        show_table(title, columns, rows)
        return
    for row in [columns, *rows]:
        print("\t".join(visible(cell) for cell in row))
    sys.stdout.flush()  # notes on stderr afterwards stand below it


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table for people, also where nobody can see colours."""
    from rich.table import Table
    from rich.text import Text

    heading = Text(title, style="bold")
    table = Table(title=heading, title_justify="left", header_style="bold", title_style="bold")
    for column in columns:
        table.add_column(Text(column))
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    stdout().print(table)


def show_problem(problem: Problem, *, listing: str = "") -> None:
    """A problem on stderr: severity and code, place, excerpt, hint; `listing` is the command that
    shows the names there are, for a hint about an unknown one.
    """
    from rich.text import Text

    problem = with_hint(problem, listing)
    colour = {"error": "bold red", "warning": "yellow", "hint": "cyan"}[problem.severity]
    print_note(
        Text.assemble(
            (f"{problem.severity}[{problem.code}]", colour), f" {visible(problem.as_text())}"
        )
    )


def show_problems(problems: Iterable[Problem]) -> bool:
    """Shows problems on stderr; returns whether one is an error."""
    found = list(problems)
    for problem in found:
        show_problem(problem)
    return any(problem.severity == "error" for problem in found)


def show_error(error: RapportError, *, listing: str = "") -> None:
    """Every problem of an error on stderr."""
    for problem in error.problems_found():
        show_problem(problem, listing=listing)


def open_closed_streams() -> None:
    """Streams that we were started without (`>&-`) lead nowhere: as they are, every look at them
    fails, and the next file that is opened would take their place.
    """
    if sys.stdin is None:
        # Open as long as the process, as all of them: there is no end to close it at.
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        _lead_nowhere("stdout")
    if sys.stderr is None:
        _lead_nowhere("stderr")


def leave_unread() -> None:
    """What is still to be written goes nowhere, now that a reader left; the end of the process
    would complain of it, and spoil the exit code.
    """
    _lead_nowhere("stdout")
    _lead_nowhere("stderr")


def write_out() -> OSError | None:
    """Flushes both streams; returns the error of stdout, whose output is then dropped.

    Output that stderr does not take is dropped silently: there is no place to report it.
    """
    _flushed("stderr")
    return _flushed("stdout")


def _flushed(name: str) -> OSError | None:
    stream = getattr(sys, name)
    try:
        if stream is not None:
            stream.flush()
    except OSError as error:
        _lead_nowhere(name)
        return error
    return None


def _lead_nowhere(name: str) -> None:
    setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
