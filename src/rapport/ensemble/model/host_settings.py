"""The settings of a host. [EN-1, EN-2]"""

from __future__ import annotations

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.codec import MAX_DEPTH, MAX_MESSAGE

_HIGHEST = {"most_bytes": MAX_MESSAGE - 131_072, "most_levels": MAX_DEPTH}
"""What a message carries, with room for roles and groups; more would be published to nobody."""


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a node allows its components, and how long it believes others."""

    replica_ms: int = 60_000
    """A replica that was not renewed for so long is dropped. Shorter: the dead are forgotten
    sooner; at least three publishing periods, or the living are forgotten too.
    """
    process_ms: int = 10_000
    """A process or evaluation that takes longer hangs: it is a fault, what it does then is not
    taken, and it is not started again before it ends.
    """
    most_bytes: int = 65_536
    """Of one component's published knowledge, in msgpack."""
    most_levels: int = 32
    """How deeply knowledge may be nested."""
    most_replicas: int = 100_000
    """Others' components that are remembered; more are refused until some are dropped."""
    longest_cascade: int = 16
    """How many processes in a row may run because the one before changed something."""
    most_retries: int = 3
    """How often in a row a call is made again because somebody else wrote to its fields."""
    offset_ms: float | None = None
    """Periodic processes and ensembles are due at offset + n x period; none: each has an offset of
    its own, drawn, so that nodes started together do not act together.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and name != "offset_ms" and value < 1:
                raise InvalidInput(
                    f"{name} cannot be {value}", code="ensemble.bad_settings", hint="at least 1"
                )
            if value is not None and value > _HIGHEST.get(name, value):
                raise InvalidInput(
                    f"{name} cannot be {value}: no message carries that",
                    code="ensemble.bad_settings",
                    hint=f"at most {_HIGHEST[name]}",
                )
