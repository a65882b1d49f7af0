"""The node of a site for a command: the running one over HTTP, else opened here. [UX-3]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.cli.remote import Remote
from rapport.cli.resting import with_resting_node
from rapport.cli.where import Where
from rapport.core.errors import StoreUnavailable, Unavailable

if TYPE_CHECKING:
    from rapport.node.node import Node


class NodeDoor:
    """Asks the running node; where none runs, opens the site's own for the one question."""

    def __init__(self, where: Where) -> None:
        self._where, self._remote = where, where.remote()
        self.is_resting = False
        """Whether the last answer came from here, since no node runs."""

    def ask(
        self,
        ask: Callable[[Remote], Any],
        local: Callable[[Node], Awaitable[Any]],
        *,
        record: bool,
    ) -> Any:
        """What the node answers, or what `local` finds; with `record` it may change something."""
        try:
            return ask(self._remote)
        except Unavailable as error:
            if self._where.url is not None or error.code != "node.unreachable":
                raise
        self.is_resting = True
        try:
            found = with_resting_node(self._where.directory, local, record=record)
        except StoreUnavailable as error:
            if error.code == "store.locked":
                error.hint = "its node runs, but not where its site.toml says: name it with --url"
            raise
        return msgspec.json.decode(msgspec.json.encode(found))
