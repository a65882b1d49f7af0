"""The identity of a site's node, by which a command distinguishes its own node from another one.
[UX-3]

A port does not suffice: two sites with the default port, or two made from the same template, differ
only in their directories and in the ids that their nodes keep with their data.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import msgspec

from rapport.core.errors import StoreUnavailable
from rapport.kernel.files import make_private_directory, write_atomically

NODE_ID_FILE = "node-id"
_LONGEST_ID = 64


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A node and its site, as a node reports it and as a command expects it."""

    site: str
    """The site's name, which another site may have too."""
    node: str = ""
    """The id in the data directory; empty if the node never ran with that data."""
    directory: str = ""
    """A digest of the site's directory; empty: it is of another machine."""

    def is_same(self, other: NodeIdentity) -> bool:
        """Whether both are of one site: by node id or directory, else by name."""
        if self.node and self.node == other.node:
            return True
        if self.directory and self.directory == other.directory:
            return True
        is_named_only = not (self.node or self.directory) or not (other.node or other.directory)
        return is_named_only and self.site == other.site


def directory_digest(directory: Path) -> str:
    """A digest of the resolved path, which does not reveal it."""
    return blake2b(str(directory.resolve()).encode(), digest_size=16).hexdigest()


def read_node_id(data: Path) -> str:
    """The id of the node that owns the data; empty if none ever ran."""
    try:
        return (data / NODE_ID_FILE).read_text(encoding="ascii").strip()[:_LONGEST_ID]
    except (OSError, UnicodeDecodeError):
        return ""


def write_node_id(data: Path, node: str) -> None:
    """Stores the id with the data, for commands; raises StoreUnavailable."""
    if read_node_id(data) == node:
        return
    try:
        make_private_directory(data)
        write_atomically(data / NODE_ID_FILE, f"{node}\n".encode("ascii"))
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write {data / NODE_ID_FILE}: {error.strerror or error}"
        ) from None
