"""How many random cases a property test tries, and how many rounds others go: a share of them in
every run, all of them before a release (`./run test --long`).

`HYPOTHESIS_PROFILE` names the profile: `default`, `full` for all, `long` for thousands of the tests
that name no number of their own.
"""

from __future__ import annotations

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
FULL = 100
"""Cases of a property that names no number."""
_SHARE = 0.25
_FEWEST = 3


def examples(full: int) -> int:
    """How many of `full` cases this run tries; never fewer than three, unless there are fewer."""
    if PROFILE != "default":
        return full
    return max(round(full * _SHARE), min(full, _FEWEST))
