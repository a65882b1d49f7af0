"""Offsets of a stream and the ranges that its tasks read. Pure. [PI-2]

An offset is the last position of each channel that was read. The same range is always split in the
same way, so that a batch that is read again after a crash has the same partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rapport.core.errors import Conflict, InvalidInput

Offset = dict[str, int]
"""The last position read of each channel; 0 = none."""

LEAST_RANGE_ROWS = 50_000
"""Least rows of a range: with fewer, starting the task costs more than reading."""
MOST_RANGES = 64
"""Most ranges of a channel, however long it is."""


class ChannelSpan(msgspec.Struct, frozen=True):
    """The oldest kept and the last position of a channel; an empty one begins after its end."""

    first: int
    last: int


class PositionRange(msgspec.Struct, frozen=True):
    """Positions after `after` up to and with `through` of one channel."""

    channel: str
    after: int
    through: int


def split_ranges(start: Mapping[str, int], end: Mapping[str, int]) -> list[PositionRange]:
    """The ranges between two offsets, in the order of channels and positions."""
    ranges: list[PositionRange] = []
    for channel, through in end.items():
        after = start.get(channel, 0)
        step = max(LEAST_RANGE_ROWS, -(-(through - after) // MOST_RANGES))
        for first in range(after, through, step):
            ranges.append(PositionRange(channel, first, min(first + step, through)))
    return ranges


def limit_offset(
    start: Mapping[str, int],
    end: Mapping[str, int],
    most_rows: int | None,
    *,
    in_turn: bool = False,
) -> Offset:
    """The end of a micro-batch of at most `most_rows` rows. Each channel gets its share of the
    waiting rows, so that all of them reach their end together; with `in_turn` a channel waits for
    those before it in `end`.
    """
    waiting = {name: max(last - start.get(name, 0), 0) for name, last in end.items()}
    total = sum(waiting.values())
    if most_rows is None or total <= most_rows:
        return {name: start.get(name, 0) + rows for name, rows in waiting.items()}
    if in_turn:
        taken, order = dict.fromkeys(waiting, 0), list(waiting)
    else:
        taken = {name: rows * most_rows // total for name, rows in waiting.items()}
        order = sorted(waiting, key=lambda name: taken[name] - waiting[name])
    left = most_rows - sum(taken.values())
    for name in order:
        more = min(left, waiting[name] - taken[name])
        taken[name], left = taken[name] + more, left - more
    return {name: start.get(name, 0) + taken[name] for name in waiting}


def skip_removed(start: Mapping[str, int], spans: Mapping[str, ChannelSpan]) -> Offset:
    """The offset without positions that retention has removed."""
    return {name: max(position, spans[name].first - 1) for name, position in start.items()}


def start_offset(
    start: object, spans: Mapping[str, ChannelSpan], *, option: str = "from"
) -> Offset:
    """The offset of the option `from`: `start`, `end`, or positions after which to begin.

    Raises InvalidInput for a position that was removed or does not exist yet.
    """
    if start == "start":
        return {name: span.first - 1 for name, span in spans.items()}
    if start == "end":
        return {name: span.last for name, span in spans.items()}
    given = _positions(start, list(spans), option)
    for name, position in given.items():
        span = spans[name]
        if position > span.last:
            raise InvalidInput(
                f"{option}: channel {name!r} ends at {span.last}, before {position}",
                code="source.position_beyond_end",
                hint="begin at an earlier position, or with: end",
            )
        if position < span.first - 1:
            raise InvalidInput(
                f"{option}: channel {name!r} has let go of what stood before {span.first}",
                code="source.position_gone",
                hint=f"begin with: start, or after position {span.first - 1} or later",
            )
    rest = {name: span.first - 1 for name, span in spans.items() if name not in given}
    return rest | given


def end_offset(until: object, spans: Mapping[str, ChannelSpan]) -> Offset:
    """The offset of the option `until`: `end`, or last positions, which may not exist yet."""
    ends = {name: span.last for name, span in spans.items()}
    if until == "end":
        return ends
    given = _positions(until, list(spans), "until")
    return {name: min(last, given.get(name, last)) for name, last in ends.items()}


def check_offset(start: Mapping[str, int], spans: Mapping[str, ChannelSpan]) -> None:
    """Raises Conflict for a position beyond the end of its channel: it is of another log."""
    for name, span in spans.items():
        if start.get(name, 0) > span.last:
            raise Conflict(
                f"the checkpoint has read {name!r} up to {start[name]}, "
                f"but the channel ends at {span.last}",
                code="source.other_log",
                hint="this checkpoint was made with another log: use a new checkpoint directory",
            )


def _positions(given: object, channels: list[str], option: str) -> Offset:
    if isinstance(given, int) and len(channels) == 1:
        given = {channels[0]: given}
    if not isinstance(given, dict):
        raise InvalidInput(
            f"{option} cannot be {given!r}",
            code="source.bad_option",
            hint='say start, end, or positions such as {"events": 1000}',
        )
    for name, position in given.items():
        if name not in channels:
            raise InvalidInput(
                f"{option} names the channel {name!r}, which is not read",
                code="source.bad_option",
                hint=f"read are: {', '.join(channels)}",
            )
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise InvalidInput(
                f"{option}: {position!r} is not a position", code="source.bad_option"
            )
    return given
