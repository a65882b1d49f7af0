"""Who may append to, read from and take from which channel, and who may change the node. [CH-15]"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from rapport.channel.reserved import CHANGING
from rapport.core.errors import NotAllowed

Right = Literal["publish", "subscribe", "take"]
_VERBS: dict[Right, str] = {"publish": "append to", "subscribe": "read", "take": "take from"}

LOCAL = "local"
"""The identity of who needs no proof: a caller on loopback while the site names no identities, or
one that `[access.local]` lets in.
"""
NODE = "node"
"""The identity of who shows the node's own token (`[node] token_file`): it may everything."""
NOBODY = "nobody"
"""The identity of who showed none, at a door that asks for none; it has no rights, ever."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Channels (names or patterns) that an identity may append to, read from and take from."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    """What is taken is gone for all others, so reading alone does not give this right."""
    admin: bool = False
    """Whether it may change the node: interpretations, policies, interceptors, links, dead letters,
    forgetting.
    """


EVERYTHING = Grant(publish=("*",), subscribe=("*",), take=("*",), admin=True)
_NOTHING = Grant()


class Rights:
    """The grants in force; who is not named may nothing. To append to a channel whose events change
    the node takes the right to change it, too, at whatever door.
    """

    def __init__(self, grants: Mapping[str, Grant]) -> None:
        self._grants = dict(grants)

    def allows(self, identity: str, right: Right, channel: str) -> bool:
        """Whether the identity has the right on the channel."""
        if right == "publish" and channel in CHANGING and not self.allows_admin(identity):
            return False
        return self._is_granted(identity, right, channel)

    def _is_granted(self, identity: str, right: Right, channel: str) -> bool:
        patterns = getattr(self._grants.get(identity, _NOTHING), right)
        return any(fnmatchcase(channel, pattern) for pattern in patterns)

    def check(self, identity: str, right: Right, channel: str) -> None:
        """Raises NotAllowed unless the identity has the right on the channel."""
        if not self._is_granted(identity, right, channel):
            raise NotAllowed(
                f"{identity!r} may not {_VERBS[right]} channel {channel!r}",
                code="access.no_right",
                hint=f"the site's [access] gives rights: add {channel!r} to its {right} list",
            )
        if right == "publish" and channel in CHANGING:
            self.check_admin(identity)

    def allows_admin(self, identity: str) -> bool:
        """Whether the identity may change the node."""
        return self._grants.get(identity, _NOTHING).admin

    def check_admin(self, identity: str) -> None:
        """Raises NotAllowed unless the identity may change the node itself."""
        if not self.allows_admin(identity):
            raise NotAllowed(
                f"{identity!r} may not change the node",
                code="access.not_admin",
                hint=f"the site's [access] gives the right: admin = true in [access.{identity}]",
            )

    def grants(self) -> dict[str, Grant]:
        """All identities and what they may, by name."""
        return dict(sorted(self._grants.items()))
