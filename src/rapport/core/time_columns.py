"""Many times in one pass, when all have the form that `format_time` writes. [CH-12]

Apart from `times.py` because it needs numpy, which the light client does without: a door that takes
in many events hands it to the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rapport.core.times import parse_times

_MANY = 16
"""From so many times on, one pass is worth its preparation."""
_FORM = b"0000-00-00T00:00:00.000Z\n"
_LINES = np.dtype(
    {"names": ["time"], "formats": ["S23"], "offsets": [0], "itemsize": len(_FORM)}
)  # the zone and the end of the line are left out
_ALL_DIGITS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_YEAR_ONE_MS = -62_135_596_800_000


def parse_many_times(values: Sequence[str | int | None], default_ms: int) -> list[int]:
    """What `parse_times` gives, at a third of the cost for a hundred times of the usual form."""
    found = _times_of_one_form(values) if len(values) >= _MANY else None
    return parse_times(values, default_ms) if found is None else found


def _times_of_one_form(values: Sequence[str | int | None]) -> list[int] | None:
    """None unless all are like `2026-03-02T09:14:05.210Z` and name moments of the years 1 to 9999.

    Each line has the form if all of them together are the form repeated: no value can hold the end
    of a line itself, or there would be one too many.
    """
    try:
        lines = "\n".join((*values, "")).encode()  # type: ignore[arg-type]
        if lines.translate(_ALL_DIGITS_ZERO) != _FORM * len(values):
            return None
        moments = np.frombuffer(lines, _LINES)["time"].astype("M8[ms]")
    except (TypeError, ValueError):  # a number among them, or a 30th of February
        return None
    found: list[int] = moments.view(np.int64).tolist()
    return found if min(found) >= _YEAR_ONE_MS else None
