"""The identity of the node of a site, so that a command can tell its own node from another one.
[UX-3]

A port tells nothing: two sites that keep the default port, or two that were made from the same
template, differ only in their directories and in the ids that their nodes keep with their data.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import msgspec

from rapport.core.errors import StoreUnavailable
from rapport.kernel.paths import make_private_directory, temporary_path

NODE_ID_FILE = "node-id"
_LONGEST_ID = 64


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which node of which site: what a node answers, and what a command expects."""

    site: str
    """The site's name, which another site may have too."""
    node: str = ""
    """The id in the data directory; empty: there is none, the node never ran with that data."""
    directory: str = ""
    """A digest of the site's directory; empty: it is of another machine."""

    def is_same(self, other: NodeIdentity) -> bool:
        """Whether both are of one site: by its node's id or its directory, and by its name where
        one of the two has neither.
        """
        if self.node and self.node == other.node:
            return True
        if self.directory and self.directory == other.directory:
            return True
        is_named_only = not (self.node or self.directory) or not (other.node or other.directory)
        return is_named_only and self.site == other.site


def directory_digest(directory: Path) -> str:
    """The same for every way to name a directory of this machine; does not show its path."""
    return blake2b(str(directory.resolve()).encode(), digest_size=16).hexdigest()


def read_node_id(data: Path) -> str:
    """The id of the node that keeps its data there; empty when none ever ran."""
    try:
        return (data / NODE_ID_FILE).read_text(encoding="ascii").strip()[:_LONGEST_ID]
    except (OSError, UnicodeDecodeError):
        return ""


def write_node_id(data: Path, node: str) -> None:
    """Keeps the id beside the data for commands; raises StoreUnavailable."""
    if read_node_id(data) == node:
        return
    fresh = temporary_path(data / NODE_ID_FILE)
    try:
        make_private_directory(data)
        fresh.write_text(f"{node}\n", encoding="ascii")
        os.replace(fresh, data / NODE_ID_FILE)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write {data / NODE_ID_FILE}: {error.strerror or error}"
        ) from None
