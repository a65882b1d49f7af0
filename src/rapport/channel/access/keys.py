"""The keys of a site: those it declares, and the node's own, made when it first signs. [CH-18]"""

from __future__ import annotations

from pathlib import Path

from rapport.channel.access.declared import Access, KeyDeclared
from rapport.channel.access.rights import NODE
from rapport.core.errors import DuplicateName, InvalidInput
from rapport.kernel.files import is_file
from rapport.kernel.signing import KeyRing, PublicKey, SigningKey, public_key

_FILE = "file:"


def node_key_path(data: Path) -> Path:
    """Where a node keeps its private key."""
    return data / "keys" / "node.pem"


def open_node_key(data: Path) -> SigningKey:
    """The node's key, made with mode 0600 when there is none; raises InvalidInput,
    StoreUnavailable.
    """
    path = node_key_path(data)
    if not is_file(path):
        try:
            SigningKey.new().save(path)
        except DuplicateName:
            return SigningKey.load(path)  # another process made it in this moment
    return SigningKey.load(path)


def find_node_key(data: Path) -> PublicKey | None:
    """The public half of the node's key; None when it has not signed yet."""
    path = node_key_path(data)
    return _as_node(SigningKey.load(path)) if is_file(path) else None


def read_key(declared: KeyDeclared, directory: Path) -> PublicKey:
    """A declared key; raises InvalidInput when it cannot be read or is none."""
    text = declared.key
    if text.startswith(_FILE):
        try:
            text = (directory / text.removeprefix(_FILE)).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise InvalidInput(
                f"cannot read the key {declared.name!r} from {declared.key}: {why}",
                code="signature.no_key",
            ) from None
    return public_key(declared.name, text, declared.sources)


def open_keys(access: Access, directory: Path, node: PublicKey | SigningKey | None) -> KeyRing:
    """All keys that signatures are checked with; raises InvalidInput for the first faulty one."""
    ring = KeyRing(read_key(declared, directory) for declared in access.keys.values())
    if isinstance(node, SigningKey):
        node = _as_node(node)
    return ring if node is None else ring.with_key(node)


def _as_node(key: SigningKey) -> PublicKey:
    return PublicKey(NODE, key.public.raw)
