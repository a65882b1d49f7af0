"""The order in which detections are given out. [PO-7]"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from rapport.core.detection import Detection, detection_order

_time = attrgetter("time")


def in_output_order(found: Iterable[Detection]) -> list[Detection]:
    """As sorted by `detection_order`, of which all but the time is dear and seldom looked at."""
    by_time = groupby(sorted(found, key=_time), _time)
    return [item for _, some in by_time for item in _of_one_time(list(some))]


def _of_one_time(found: list[Detection]) -> list[Detection]:
    return sorted(found, key=detection_order) if len(found) > 1 else found
