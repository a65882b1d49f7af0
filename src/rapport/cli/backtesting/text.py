"""A back-test on a terminal: calendar, hours and weekdays, who, findings, differences. Shades are
signs as well as colours, so that nothing depends on seeing colours. [PI-9, UX-3]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rapport.cli.explaining.text import candidate_tree
from rapport.pipeline.backtest.result import BackTest, Comparison, Example, Tally
from rapport.pipeline.drawing.calendar import WEEKDAYS, Calendar, level, months, shades
from rapport.policy.explain.answer import WhyNotAnswer
from rapport.policy.explain.wording import bindings_text, duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_SIGNS = ("·", "░", "▒", "▓", "█")
_COLOURS = ("bright_black", "#7d9fc9", "#a8a86b", "#d9b53f", "#ffe945")
"""The order of cividis: light against dark tells the same as the hue, to every kind of eye."""
_MARKS = {"first": ("-", "red"), "second": ("+", "green")}
_MOST_DAYS = 15


class Shown:
    """Says a back-test in lines."""

    def __init__(self, told: BackTest, calendar: Calendar, console: Console) -> None:
        self._told, self._calendar, self._console = told, calendar, console

    def show(self) -> None:
        """Everything, on the console."""
        self._print(self._headline())
        for tally in self._told.tallies:
            self._tally(tally)
        if self._told.comparison is None:
            self._list(self._told.examples, self._told.tallies[0].detections)
        else:
            self._comparison(self._told.comparison)

    def _print(self, text: Text | str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _headline(self) -> Text:
        from rich.text import Text

        told = self._told
        parts = [f"{told.events:,} readings"]
        if told.span is not None:
            first, last = (self._calendar.clock(time)[:19] for time in told.span)
            parts.append(f"{first} to {last} ({told.zone})")
        if told.late:
            parts.append(f"{told.late:,} came too late to count")
        return Text(", ".join(parts))

    def _tally(self, tally: Tally) -> None:
        from rich.text import Text

        days = len(tally.days)
        on = f" on {days:,} day{'s' * (days != 1)}" if days else ""
        count = f"{tally.detections:,} detection{'s' * (tally.detections != 1)}"
        self._print(Text.assemble("\n", (tally.label, "bold"), f"  {count}{on}"))
        for line in self._besides(tally):
            self._print(Text(f"  {line}", "yellow"))
        if tally.detections:
            self._print("")
            for row in self._calendar_rows(tally.days):
                self._print(row)
            self._print("")
            for row in _hour_rows(tally.hours):
                self._print(row)
            self._print("")
            for one in tally.who:
                top = ", ".join(f"{identity} {count:,}" for identity, count in one.top)
                more = f", and {one.others:,} more" if one.others else ""
                self._print(Text.assemble("  ", (one.alias, "bold"), f"  {top}{more}"))

    def _besides(self, tally: Tally) -> list[str]:
        lines = []
        if tally.undecided:
            silent = f", since nothing came from {', '.join(tally.silent)}" if tally.silent else ""
            lines.append(f"{tally.undecided:,} undecided{silent}")
        if tally.suppressed:
            period = duration(tally.once_per_ms or 0)
            lines.append(f"{tally.suppressed:,} left out, at most once per {period}")
        return lines

    def _calendar_rows(self, days: dict[str, int]) -> list[Text]:
        from rich.text import Text

        span = self._told.span
        if span is None:
            return []
        first, last = self._calendar.day_of(span[0]), self._calendar.day_of(span[1])
        first, last = min([first, *days]), max([last, *days])
        most = max(days.values(), default=0)
        marks = {1: "1", 5: "5", **{day: str(day) for day in range(10, 31, 5)}}
        heading = "".join(f"{marks.get(day, ''):<2}" for day in range(1, 32))
        rows = [Text(f"  {'':7}  {heading}", "dim")]
        for month in months(days, first, last):
            cells = [_cell(count, most) for count in month.days]
            cells += [("  ", "")] * (31 - len(cells))
            rows.append(Text.assemble(f"  {month.name}  ", *cells, f"  {month.total:>7,}"))
        return [*rows, _legend(most)]

    def _list(self, examples: Sequence[Example], count: int) -> None:
        from rich.text import Text

        if not examples:
            return
        self._print("")
        for one in examples:
            self._example("  ", one)
        if count > len(examples):
            left = count - len(examples)
            self._print(Text(f"  and {left:,} more; --show N, or all with --out FILE", "dim"))
        self._explained(examples)

    def _example(self, mark: str, one: Example, style: str = "") -> None:
        from rich.text import Text

        about = bindings_text(one.detection.bindings) or "nobody in particular"
        when = self._calendar.clock(one.detection.time)
        self._print(Text.assemble((mark, style), (when, "cyan"), "  ", (about, "bold")))

    def _explained(self, examples: Sequence[Example]) -> None:
        """Those that are explained, else how to ask for the first."""
        from rich.text import Text

        for one in examples:
            if one.why is None:
                continue
            self._print(Text(f"\nWhy {one.why.policy} fired", "bold"))
            if one.why.held is None:
                self._print(Text("  the readings around it do not tell", "yellow"))
            else:
                self._console.print(candidate_tree(one.why.held))
            if one.why_not is not None:
                self._why_not(one.why_not)
        if examples[0].command and all(one.why is None for one in examples):
            self._print(Text(f"\nwhy: {examples[0].command}", "dim"))

    def _why_not(self, answer: WhyNotAnswer) -> None:
        from rich.text import Text

        did = "fired, too" if answer.fired else "did not"
        self._print(Text(f"\nWhy {answer.policy} {did}", "bold"))
        shown = answer.fired or answer.candidates
        if shown:
            self._console.print(candidate_tree(shown[0]))
        else:
            self._print(Text("  nobody came near", "yellow"))
        if answer.nearest is not None and not answer.fired:
            self._print(f"Nearest miss: {answer.nearest.text}, and it would have fired")

    def _comparison(self, found: Comparison) -> None:
        from rich.text import Text

        first, second = (tally.label for tally in self._told.tallies)
        counts = f"{found.both:,} found by both, {found.only_first:,} only by {first} (-), "
        counts += f"{found.only_second:,} only by {second} (+)"
        self._print(Text.assemble("\n", ("compared", "bold"), f"  {counts}"))
        differing = [(day, counts) for day, counts in found.days.items() if any(counts[1:])]
        for day, (both, ours, theirs) in differing[:_MOST_DAYS]:
            line = f"  {day}  {both:>7,} both"
            self._print(Text.assemble(line, (f"  -{ours:<7,}", "red"), (f"  +{theirs:,}", "green")))
        if len(differing) > _MOST_DAYS:
            left = len(differing) - _MOST_DAYS
            self._print(Text(f"  and {left:,} more days on which they differ", "dim"))
        if found.examples:
            self._print("")
        for one in found.examples:
            mark, style = _MARKS[one.found_by]
            self._example(f"  {mark} ", one, style)
        left = found.only_first + found.only_second - len(found.examples)
        if left:
            self._print(Text(f"  and {left:,} more; --show N, or all with --out FILE", "dim"))
        if found.examples:
            self._explained(found.examples)


def _cell(count: int | None, most: int) -> tuple[str, str]:
    """Two signs for a day or an hour: how much by their darkness."""
    if count is None:
        return "  ", ""
    shade = level(count, most)
    return _SIGNS[shade] * (2 if shade else 1) + " " * (not shade), _COLOURS[shade]


def _legend(most: int) -> Text:
    from rich.text import Text

    parts: list[tuple[str, str] | str] = ["           ", (_SIGNS[0], _COLOURS[0]), " none"]
    for low, high in shades(most):
        shade = level(high, most)
        parts += ["   ", (_SIGNS[shade] * 2, _COLOURS[shade]), f" {low:,}"]
        parts += [f"-{high:,}"] if high > low else []
    return Text.assemble(*parts)


def _hour_rows(hours: Sequence[Sequence[int]]) -> list[Text]:
    from rich.text import Text

    most = max(max(row) for row in hours)
    heading = "".join(f"{hour if hour % 6 == 0 else '':<2}" for hour in range(24))
    rows = [Text(f"  {'':7}  {heading}", "dim")]
    for name, row in zip(WEEKDAYS, hours, strict=True):
        cells = [_cell(count, most) for count in row]
        rows.append(Text.assemble(f"  {name:7}  ", *cells, f"  {sum(row):>7,}"))
    return rows
