"""Who may append to and read from which channel. [CH-15]"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from rapport.core.errors import NotAllowed

Right = Literal["publish", "subscribe"]

LOCAL = "local"
"""The identity of who needs no proof: a caller on loopback while no tokens are set."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Channels (names or patterns) that an identity may append to and read from."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()


EVERYTHING = Grant(publish=("*",), subscribe=("*",))


class Rights:
    """The grants in force; who is not named may nothing."""

    def __init__(self, grants: Mapping[str, Grant]) -> None:
        self._grants = dict(grants)

    def allows(self, identity: str, right: Right, channel: str) -> bool:
        """Whether the identity has the right on the channel."""
        patterns = getattr(self._grants.get(identity, Grant()), right)
        return any(fnmatchcase(channel, pattern) for pattern in patterns)

    def check(self, identity: str, right: Right, channel: str) -> None:
        """Raises NotAllowed unless the identity has the right on the channel."""
        if not self.allows(identity, right, channel):
            verb = "append to" if right == "publish" else "read"
            raise NotAllowed(
                f"{identity!r} may not {verb} channel {channel!r}",
                code="access.no_right",
                hint=f"the site's [access] gives rights: add {channel!r} to its {right} list",
            )
