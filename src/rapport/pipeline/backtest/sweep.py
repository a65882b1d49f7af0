"""A sweep: one policy with several values of one of its constants, over the same history. [SI-12]

`50 ug/m3=30..80 by 5` replaces the constant `50 ug/m3`, wherever the policy's text has it before
its actions, by 30, 35, ... 80 ug/m3. All values run in one scan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

import msgspec

from rapport.core.errors import InvalidInput, Problem
from rapport.pipeline.backtest.contenders import Contender
from rapport.pipeline.backtest.contest import problems_of
from rapport.pipeline.backtest.episodes import Episodes
from rapport.pipeline.backtest.execution import BackTestFound, BackTestWork
from rapport.pipeline.backtest.find_history import nothing_in_period
from rapport.pipeline.backtest.findings import EpisodeFigures
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.lexer import Token, tokenize_situation
from rapport.policy.situation_plan import SituationPlan

MOST_VALUES = 100
_NEAREST = 3
_EXAMPLE = 'write the constant as the policy has it: --sweep "50 ug/m3=30..80 by 5"'
_NOT_UNITS = frozenset(("reading", "readings"))


class PlacedConstant(NamedTuple):
    """A number in a policy's text with the unit behind it."""

    number: Decimal
    unit: str
    line: int
    """From 0."""
    start: int
    end: int
    """Where the number stands in the line."""

    @property
    def text(self) -> str:
        return f"{_shown(self.number)} {self.unit}".rstrip()


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A constant and the values to try."""

    constant: str
    number: Decimal
    unit: str
    values: tuple[Decimal, ...]

    @staticmethod
    def parse(given: str) -> Sweep:
        """Reads `CONSTANT=FROM..TO by STEP`; raises InvalidInput."""
        constant, equals, rest = given.partition("=")
        span, by, step = rest.partition(" by ")
        first, dots, last = span.partition("..")
        found = constants_of(constant)
        if not (equals and by and dots) or len(found) != 1:
            raise _refused(f"{given!r} is not a sweep")
        try:
            low, high, width = (Decimal(part.strip()) for part in (first, last, step))
        except InvalidOperation:
            raise _refused(f"{given!r} is not a sweep") from None
        if not all(one.is_finite() for one in (low, high, width)) or width <= 0 or low > high:
            raise _refused(f"{rest.strip()!r} has no values", "FROM is at most TO, STEP above 0")
        count = (high - low) // width + 1
        if count > MOST_VALUES:
            raise _refused(
                f"{rest.strip()!r} are {count:,} values", f"try at most {MOST_VALUES} at a time"
            )
        values = tuple(low + width * number for number in range(int(count)))
        return Sweep(
            constant=found[0].text, number=found[0].number, unit=found[0].unit, values=values
        )

    def texts(self, text: str, concepts: Collection[str] = ()) -> list[str]:
        """The policy's text with each value; raises InvalidInput with the nearest constants if it
        does not have the constant.
        """
        every = constants_of(text, concepts)
        places = [one for one in every if (one.number, one.unit) == (self.number, self.unit)]
        if not places:
            raise InvalidInput(
                f"the policy has no constant {self.constant}",
                code="backtest.no_constant",
                hint=self._nearest(every),
            )
        return [_replaced(text, places, value) for value in self.values]

    def label(self, value: Decimal) -> str:
        """`35 ug/m3`."""
        return f"{_shown(value)} {self.unit}".rstrip()

    def _nearest(self, every: Sequence[PlacedConstant]) -> str:
        if not every:
            return "it has no constants"
        by_distance = sorted(
            every, key=lambda one: (one.unit != self.unit, abs(one.number - self.number))
        )
        named = list(dict.fromkeys(one.text for one in by_distance))[:_NEAREST]
        return f"it has {', '.join(named)}"


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one value gives."""

    value: str
    number: float
    figures: EpisodeFigures | None
    """None: the policy has `conditions`, whose detections do not last."""
    detections: int


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What all values give."""

    policy: str
    constant: str
    unit: str
    history: str
    engine: str
    zone: str
    events: int
    first: int | None
    last: int | None
    begin: int | None
    end: int | None
    rows: list[SweepRow]
    text: str
    """Of the policy as it is."""
    problems: list[Problem] = []
    seconds: float = 0.0


def swept(
    first: Contender, sweep: Sweep, concepts: Collection[str], compiled: Callable[[str], Contender]
) -> list[Contender]:
    """A contender for each value, under a name of its own; `compiled` compiles a text."""
    found = []
    for value, text in zip(sweep.values, sweep.texts(first.text, concepts), strict=True):
        label = sweep.label(value)
        made = compiled(text)
        plan = msgspec.structs.replace(made.plan, policy=f"{made.name} at {label}")
        found.append(msgspec.structs.replace(made, label=label, plan=plan))
    return found


def run_sweep(
    work: BackTestWork,
    sweep: Sweep,
    policy: Contender,
    contenders: Sequence[Contender],
    run: Callable[[BackTestWork], BackTestFound],
    *,
    engine: str,
    zone: str,
) -> SweepResult:
    """Runs all values in one scan; raises InvalidInput when the period has no readings."""
    found = run(work)
    if not found.events:
        raise nothing_in_period(work.history.label, work.history.span())
    begin = None if work.period is None else work.period.begin
    end = None if work.period is None else work.period.end
    rows = []
    for value, one in zip(sweep.values, contenders, strict=True):
        is_situation = isinstance(one.plan, SituationPlan)
        since = None if is_situation else begin
        own = found.columns.of(one.plan.policy, since, end)
        figures = None
        if is_situation:
            assert found.ended is not None
            figures = Episodes(own, begin, found.ended, is_situation=True).figures()
        rows.append(
            SweepRow(
                value=one.label,
                number=float(value),
                figures=figures,
                detections=len(own) if figures is None else figures.episodes,
            )
        )
    return SweepResult(
        policy=policy.label,
        constant=sweep.constant,
        unit=sweep.unit,
        history=work.history.label,
        engine=engine,
        zone=zone,
        events=found.events,
        first=found.first,
        last=found.last,
        begin=begin,
        end=end,
        rows=rows,
        text=policy.text,
        problems=problems_of(found),
    )


def constants_of(text: str, concepts: Collection[str] = ()) -> list[PlacedConstant]:
    """The constants of a policy's text before its actions, or of a piece of one. A word behind a
    number is its unit, unless it is one of `concepts` (`at least 2 person B`).
    """
    faults = Diagnostics("sweep", text)
    not_units = _NOT_UNITS | set(concepts)
    found: list[PlacedConstant] = []
    for number, line in enumerate(text.splitlines()):
        tokens = tokenize_situation(line, number + 1, faults)
        if tokens and tokens[0].text.lower() == "actions":
            break
        for token, after in zip(tokens, [*tokens[1:], None], strict=True):
            if token.kind == "number":
                start = token.place.column - 1
                end = start + token.place.length
                unit = _unit(after, not_units)
                found.append(PlacedConstant(Decimal(token.text), unit, number, start, end))
    return found


def _unit(token: Token | None, not_units: Collection[str]) -> str:
    if token is None or token.kind not in ("unit", "word") or token.text in not_units:
        return ""
    return token.text


def _replaced(text: str, places: Sequence[PlacedConstant], value: Decimal) -> str:
    lines = text.splitlines(keepends=True)
    for one in reversed(places):
        line = lines[one.line]
        lines[one.line] = line[: one.start] + _shown(value) + line[one.end :]
    return "".join(lines)


def _shown(number: Decimal) -> str:
    """Without an exponent and without trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _refused(message: str, hint: str = "") -> InvalidInput:
    return InvalidInput(message, code="backtest.bad_sweep", hint=hint or _EXAMPLE)
