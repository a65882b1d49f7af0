"""What a replay found, for people: when, who, because of what, and how often. [UX-3, PO-11]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rapport.core.detection import Cause, Detection
from rapport.core.errors import InvalidInput
from rapport.policy.explain.wording import Wording, bindings_text, duration, relative
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.replay.replay import cause_streams, cause_values

if TYPE_CHECKING:
    from rich.text import Text

    from rapport.cli.replaying.run import Chosen
    from rapport.policy.explain.evidence import Reading
    from rapport.policy.replay.replay import ReplayDifference, ReplayResult

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BARS = "▁▂▃▄▅▆▇█"
_NOTHING = "·"
_MOST_BARS = 62
_MOST_VALUES = 4
_MARKS = {"site": ("-", "red"), "changed": ("+", "green")}

Readings = Mapping[Cause, list["Reading"]]
Bucket = Callable[[datetime], int]


def time_zone(name: str) -> tzinfo | None:
    """The zone of that name, None for the machine's own; raises InvalidInput."""
    if name.lower() == "local":
        return None
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f"there is no time zone {name[:60]!r}",
            code="cli.bad_zone",
            hint="UTC, local, or a name such as America/Sao_Paulo",
        ) from None


class Readable:
    """Says what was found in the words and units of a site, at most `most` of each policy."""

    def __init__(self, ontology: Ontology, plans: Mapping[str, Plan], zone: str, most: int) -> None:
        self._words, self._plans, self._most = Wording(ontology), plans, max(most, 0)
        self._zone, self._zone_name = time_zone(zone), zone

    def causes(self, result: ReplayResult, chosen: Chosen) -> set[Cause]:
        """Of what will be shown, what it rests on."""
        shown = [one.detection for one in self._differences(result, chosen)]
        if chosen.changed is None:
            shown = [one for found in self._by_policy(result) for one in found[: self._most]]
        return {cause for one in shown for cause in one.causes}

    def text(self, result: ReplayResult, readings: Readings, chosen: Chosen) -> list[Text]:
        """All lines, without what belongs to stderr."""
        lines = [self._headline(result)]
        if chosen.changed is not None:
            return [*lines, *self._compared(result, readings, chosen)]
        for policy, found in zip(self._plans, self._by_policy(result), strict=True):
            lines += self._policy(policy, found, result, readings)
        return lines

    def _by_policy(self, result: ReplayResult) -> list[list[Detection]]:
        return [
            [one for one in result.detections if one.policy == policy] for policy in self._plans
        ]

    def _differences(self, result: ReplayResult, chosen: Chosen) -> Sequence[ReplayDifference]:
        if chosen.changed is None:
            return ()
        return chosen.compared(result).differences[: self._most]

    def _headline(self, result: ReplayResult) -> Text:
        from rich.text import Text

        if result.first is None or result.last is None:
            return Text("no events")
        span = f"{self._time(result.first)} to {self._time(result.last)}"
        return Text(f"{result.events:,} events, {span} ({self._zone_name})")

    def _policy(
        self, policy: str, found: list[Detection], result: ReplayResult, readings: Readings
    ) -> list[Text]:
        from rich.text import Text

        times = "" if len(found) == 1 else "s"
        lines = [Text.assemble("\n", (policy, "bold"), f"  {len(found):,} detection{times}")]
        lines += [self._detection("  ", one, readings) for one in found[: self._most]]
        if len(found) > self._most:
            lines.append(Text(f"  and {len(found) - self._most:,} more, see --show", "dim"))
        if found:
            lines.append(self._how_often(found, result))
        return [*lines, *self._besides(policy, result)]

    def _detection(self, mark: str, one: Detection, readings: Readings) -> Text:
        from rich.text import Text

        streams = cause_streams(self._plans[one.policy])
        because = self._because(one, cause_values(one.causes, readings, streams))
        about = bindings_text(one.bindings) or "nobody in particular"
        return Text.assemble(mark, (self._time(one.time), "cyan"), "  ", (about, "bold"), because)

    def _because(self, one: Detection, values: Sequence[Reading]) -> str:
        """The first values, each with how long before that was; once where it is the same."""
        shown = values[:_MOST_VALUES]
        if not shown:
            return ""
        ages = [f" ({relative(each.time - one.time)})" for each in shown]
        ages = ["" if age == f" ({relative(0)})" else age for age in ages]
        if len(set(ages)) == 1:
            ages[:-1] = [""] * (len(ages) - 1)
        said = [
            f"{self._words.reading(each).text}{age}" for each, age in zip(shown, ages, strict=True)
        ]
        more = [f"and {len(values) - len(shown)} more"] if len(values) > len(shown) else []
        return f"  {', '.join([*said, *more])}"

    def _how_often(self, found: list[Detection], result: ReplayResult) -> Text:
        from rich.text import Text

        times = [one.time for one in found]
        first = min(times + ([] if result.first is None else [result.first]))
        last = max(times + ([] if result.last is None else [result.last]))
        name, bucket = _buckets(self._moment(first), self._moment(last))
        counts = Counter(bucket(self._moment(time)) for time in times)
        every = range(bucket(self._moment(first)), bucket(self._moment(last)) + 1)
        most = max(counts.values())
        bars = "".join(_bar(counts[place], most) for place in every)
        return Text.assemble((f"  per {name}  ", "dim"), bars, (f"  at most {most:,}", "dim"))

    def _besides(self, policy: str, result: ReplayResult) -> list[Text]:
        """What it did not report, and why."""
        from rich.text import Text

        parts = []
        undecided = [one for one in result.undecided if one.policy == policy]
        if undecided:
            silent = sorted({name for one in undecided for name in one.silent})
            names = ", ".join(silent)
            parts.append(f"{len(undecided):,} undecided, since nothing came from {names}")
        left_out = result.suppressed.get(policy, 0)
        if left_out:
            period = duration(self._plans[policy].once_per_ms or 0)
            parts.append(f"{left_out:,} left out, at most once per {period}")
        return [Text(f"  {part}", "yellow") for part in parts]

    def _compared(self, result: ReplayResult, readings: Readings, chosen: Chosen) -> list[Text]:
        from rich.text import Text

        compared = chosen.compared(result)
        ours, theirs = len(compared.only("site")), len(compared.only("changed"))
        counts = f"{compared.both:,} found by both, {ours:,} by the site's version alone (-), "
        counts += f"{theirs:,} by {chosen.file.name} alone (+)"
        lines = [Text.assemble("\n", (compared.policy, "bold"), f"  {counts}")]
        for one in compared.differences[: self._most]:
            mark, style = _MARKS[one.found_by]
            line = self._detection(f"  {mark} ", one.detection, readings)
            line.stylize(style, 0, 4)
            lines.append(line)
        if len(compared.differences) > self._most:
            left = len(compared.differences) - self._most
            lines.append(Text(f"  and {left:,} more, see --show", "dim"))
        return lines

    def _time(self, time_ms: int) -> str:
        try:
            moment = self._moment(time_ms)
        except OverflowError:
            return str(time_ms)
        said = moment.strftime("%Y-%m-%d %H:%M:%S")
        return f"{said}.{time_ms % 1_000:03}" if time_ms % 1_000 else said

    def _moment(self, time_ms: int) -> datetime:
        return (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(self._zone)


def _buckets(first: datetime, last: datetime) -> tuple[str, Bucket]:
    """As fine as fits into a line: hours, days, weeks, months or years."""
    choices: tuple[tuple[str, Bucket], ...] = (
        ("hour", lambda moment: moment.toordinal() * 24 + moment.hour),
        ("day", lambda moment: moment.toordinal()),
        ("week", lambda moment: (moment.toordinal() - 1) // 7),
        ("month", lambda moment: moment.year * 12 + moment.month),
        ("year", lambda moment: moment.year),
    )
    for name, bucket in choices:
        if bucket(last) - bucket(first) < _MOST_BARS:
            return name, bucket
    return choices[-1]


def _bar(count: int, most: int) -> str:
    return _BARS[(count * len(_BARS) - 1) // most] if count else _NOTHING
