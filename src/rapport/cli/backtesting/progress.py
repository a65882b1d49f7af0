"""How far a back-test is: readings, rate and time left on stderr; nothing where nobody looks.
[PI-9, UX-3]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rapport.cli.terminal import stderr


@contextmanager
def watched(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; `total` None: nobody knows how much there is."""
    console = stderr()
    if not console.is_terminal:
        yield lambda _done: None
        return
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Readings so far and per second."""

        def render(self, task: Task) -> Text:
            """Rounded, so that it can be read while it moves."""
            speed = task.finished_speed or task.speed
            rate = "" if not speed else f"  {_short(speed)}/s"
            return Text(f"{_short(task.completed)} readings{rate}")

    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


def _short(number: float) -> str:
    """`1.3 M`, `850 k`, `12`.

    >>> _short(1_300_000), _short(850_000), _short(12)
    ('1.3 M', '850 k', '12')
    """
    if number >= 999_500:
        return f"{number / 1e6:.1f} M"
    return f"{number / 1e3:.0f} k" if number >= 1_000 else f"{number:.0f}"
