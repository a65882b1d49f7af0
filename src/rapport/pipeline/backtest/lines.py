"""All findings as lines of JSON: the fixed form of detections, of two versions with who found each.
[PI-9, UX-3]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import msgspec
import numpy as np
import pyarrow as pa

from rapport.pipeline.backtest.making import Made
from rapport.pipeline.history.detection_table import detections_from

_CHUNK = 10_000
_BOTH, _FIRST, _SECOND = 0, 1, 2
_FOUND_BY = ("both", "first", "second")


class _Line(msgspec.Struct):
    """Field order is the key order of the output."""

    policy: str
    found_by: str
    time: int
    bindings: dict[str, str]
    causes: list[str]


def write_lines(made: Made, file: BinaryIO) -> None:
    """Writes the detections as `rapport replay` does; of two versions each with `found_by`: both,
    first or second, by time. Memory does not grow with them.
    """
    pieces = made.findings[0].lines(made.names[0]) if made.only is None else _compared(made)
    for piece in pieces:
        file.write(piece)


def _compared(made: Made) -> Iterator[bytes]:
    assert made.only is not None
    first, second = made.findings
    alone = np.flatnonzero(made.only[1])
    rows = pa.concat_tables([first.rows, second.rows.take(pa.array(alone))])
    found_by = np.concatenate((np.where(made.only[0], _FIRST, _BOTH), np.full(len(alone), _SECOND)))
    order = np.argsort(rows.column("time").to_numpy(), kind="stable")
    for start in range(0, len(order), _CHUNK):
        places = order[start : start + _CHUNK]
        found = detections_from(rows.take(pa.array(places)))
        lines = [
            _Line(
                made.names[1 if by == _SECOND else 0],
                _FOUND_BY[by],
                one.time,
                dict(sorted(one.bindings.items())),
                [id for _time, id in one.causes],
            )
            for one, by in zip(found, found_by[places], strict=True)
        ]
        yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
