"""Settings that are numbers: each within what its machine can work with. [CX-4, CX-5]"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rapport.core.errors import InvalidInput

MANY = 1_000_000_000
"""More than anybody needs, and still a number that can be counted and waited for."""


def check_ranges(
    settings: msgspec.Struct, ranges: Mapping[str, tuple[float, float]], *, code: str
) -> None:
    """Raises InvalidInput with that code for the first field that is outside its least and most;
    what is no number (NaN) is outside, too.
    """
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            raise InvalidInput(
                f"{name} = {value} cannot be",
                code=code,
                hint=f"from {least} to {most}" if most < MANY else f"{least} or more",
            )
