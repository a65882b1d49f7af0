"""Settings that are numbers, and what is outside. [CX-4]"""

from __future__ import annotations

import math

import msgspec
import pytest

from rapport.core.errors import InvalidInput
from rapport.overlay.membership_steps import MANY, check_ranges


class Some(msgspec.Struct, frozen=True, kw_only=True):
    count: int = 3
    pause_ms: float = 5.0


RANGES = {"count": (0, 9), "pause_ms": (1, MANY)}


@pytest.mark.parametrize(
    "sound", [{"count": 0}, {"count": 9}, {"pause_ms": 1}, {"pause_ms": 1e9}], ids=str
)
def test_the_ends_of_a_range_are_within(sound: dict) -> None:
    check_ranges(Some(**sound), RANGES, code="x.bad_settings")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"count": -1}, "from 0 to 9"),
        ({"count": 10}, "from 0 to 9"),
        ({"pause_ms": 0.5}, "1 or more"),
        ({"pause_ms": math.nan}, "1 or more"),
        ({"pause_ms": math.inf}, "1 or more"),
    ],
    ids=str,
)
def test_what_is_outside_is_refused_with_its_name_and_range(wrong: dict, hint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_ranges(Some(**wrong), RANGES, code="x.bad_settings")
    assert (refused.value.code, refused.value.hint) == ("x.bad_settings", hint)
    assert next(iter(wrong)) in refused.value.message
