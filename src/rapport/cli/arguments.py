"""What several commands share: `--site`, `--json`, times, `-` for standard input, the options of
runs over history, commands of the package `rapport_lab`, and commands that last until Ctrl-C.
[UX-2, UX-3, UX-4, PO-8, PI-9]
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import App, Parameter

from rapport.cli.hints import unknown, wrong_use
from rapport.cli.output import print_note
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.times import format_time, parse_duration, parse_time
from rapport.kernel.clock import SystemClock

T = TypeVar("T")

_DURATION = re.compile(r"\d+(\.\d+)?\s*[a-z]+\Z")
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d{1,3})?)?\Z")
_NOW = "now"


def moment(text: str | None) -> int | None:
    """The time in ms, None for no text; see `parse_moment`."""
    return parse_moment(text) if text else None


def parse_moment(text: str) -> int:
    """The time in ms: `2026-03-02T09:00:00Z`, milliseconds, `2h` for two hours ago, `09:14` of
    today in UTC, or `now`. Raises InvalidInput for other texts.
    """
    text, now_ms = text.strip(), SystemClock().now_ms()
    if text == _NOW:
        return now_ms
    if _DURATION.match(text):
        return now_ms - parse_duration(text)
    if _CLOCK.match(text):
        return parse_time(f"{format_time(now_ms)[:10]}T{text.zfill(5)}")
    try:
        return parse_time(text)
    except InvalidInput as error:
        error.hint = "2h for two hours ago, 09:14 of today, or 2026-03-02T09:14:05Z"
        raise


JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="As JSON.")]
SiteOption = Annotated[Path | None, Parameter(name="--site", help="The site directory.")]


def site_directory(given: Path | None) -> Path:
    """The site's directory; the loader checks it."""
    return given or Path(os.environ.get("RAPPORT_SITE", "."))


def check_count(count: int | None, what: str) -> None:
    """Raises InvalidInput for a `--count` below 1."""
    if count is not None and count < 1:
        raise wrong_use(
            f"cannot wait for {count} {what}",
            f"--count is 1 or more; without it, {what} are printed until Ctrl-C",
        )


STDIN = "-"
_OPTION = re.compile(r"--?[a-z][a-z-]*(=.*)?", re.DOTALL)


def may_be_stdin(command: Callable[[], Callable[..., Any]]) -> Parameter:
    """For an argument of the command that may be `-`, or a text such as `-5 degrees`. What looks
    like an option is refused all the same: it is a misspelt one.
    """

    def refuse(_type: Any, word: str) -> None:
        if _OPTION.fullmatch(word):
            raise _misspelt(word.partition("=")[0], command())

    return Parameter(allow_leading_hyphen=True, validator=refuse)


def prompt_for_input() -> None:
    """Prints on a terminal that input is awaited; nothing where input is piped in."""
    if sys.stdin.isatty():
        print_note("reading what you type; end it with Ctrl-D")


def _misspelt(word: str, command: Callable[..., Any]) -> InvalidInput:
    help_of = f"rapport {command.__name__} --help"
    options = _options(command)
    if word in options:
        return wrong_use(f"something is missing before {word}", help_of)
    return unknown("option", word, options, if_none=help_of, code="cli.wrong_use")


def _options(command: Callable[..., Any]) -> list[str]:
    alone = App(default_command=command)
    names = [name for each in alone.assemble_argument_collection() for name in each.names]
    return [name for name in names if name.startswith("-")]


@Parameter(name="*")
@dataclass(frozen=True)
class HistoryOptions:
    """The options that `rapport replay` and `rapport backtest` share."""

    since: Annotated[
        str | None, Parameter(name=["--since", "--from"], help="From this time on.")
    ] = None
    until: Annotated[
        str | None, Parameter(name=["--until", "--to"], help="Before it; of files: on to it.")
    ] = None
    tables: Annotated[
        Literal["now", "then"] | None,
        Parameter(help="Rows of tables: of now, or of then; else of then where on record."),
    ] = None
    zone: Annotated[str, Parameter(help="Times for people: UTC, local, Europe/Lisbon.")] = "UTC"
    engine: Annotated[Literal["local", "spark"], Parameter(help="Where to run.")] = "local"
    master: Annotated[str | None, Parameter(help="Spark: its master.")] = None
    partitions: Annotated[int | None, Parameter(help="Spark: number of time slices.")] = None
    lateness: Annotated[str | None, Parameter(help="How long to wait for late events.")] = None

    def as_request(self) -> dict[str, Any]:
        """Returns the fields that the requests of both commands have in common, times in ms."""
        return {
            "since": moment(self.since),
            "until": moment(self.until),
            "tables": self.tables,
            "engine": self.engine,
            "master": self.master,
            "partitions": self.partitions,
            "lateness_ms": None if self.lateness is None else parse_duration(self.lateness),
        }


ALL_HISTORY = HistoryOptions()


def lab_command(path: str) -> str:
    """Returns the import path of a command in `rapport_lab`, or of `not_installed` without it."""
    return path if find_spec("rapport_lab") else "rapport.cli.arguments:not_installed"


def not_installed(
    *_arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
) -> None:
    """Needs the package rapport-lab."""
    raise Unavailable(
        "this command is part of rapport-lab, which is not installed",
        code="cli.no_laboratory",
        hint="install rapport-lab from the repository: pip install ./lab",
    )


def run_until_stopped(work: Coroutine[Any, Any, T]) -> T | None:
    """Runs a command that lasts; Ctrl-C and SIGTERM end it in order, and are no failure."""

    async def run() -> T | None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            return None

    import uvloop

    return uvloop.run(run())
