"""Which node is that of which site. [UX-3]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.errors import StoreUnavailable
from rapport.kernel.node_identity import (
    NodeIdentity,
    directory_digest,
    read_node_id,
    write_node_id,
)


def identity(site: str, node: str = "", directory: str = "") -> NodeIdentity:
    return NodeIdentity(site=site, node=node, directory=directory)


@pytest.mark.parametrize(
    ("expected", "found", "is_same"),
    [
        (identity("sec", "1", "a"), identity("sec", "1", "a"), True),
        (identity("sec", "1", "a"), identity("med", "2", "b"), False),
        (identity("made", "1", "a"), identity("made", "2", "b"), False),
        (identity("made", "", "a"), identity("made", "2", "b"), False),
        (identity("sec", "1", "a"), identity("sec", "1", "inside a container"), True),
        (identity("sec", "of another --data", "a"), identity("sec", "2", "a"), True),
        (identity("renamed", "1", "a"), identity("sec", "1", "a"), True),
        (identity("elsewhere"), identity("elsewhere", "2", "b"), True),
        (identity("elsewhere"), identity("sec", "2", "b"), False),
    ],
)
def test_a_site_is_known_by_id_or_directory_and_by_name_only_without_both(
    expected: NodeIdentity, found: NodeIdentity, is_same: bool
) -> None:
    assert expected.is_same(found) is is_same


def test_the_id_is_kept_with_the_data_and_absent_before_a_node_ran(tmp_path: Path) -> None:
    data = tmp_path / "site" / ".rapport"
    assert read_node_id(data) == ""
    write_node_id(data, "00ff")
    write_node_id(data, "00ff")
    assert read_node_id(data) == "00ff"
    (data / "node-id").write_bytes(b"\xff\xfe")
    assert read_node_id(data) == ""


def test_an_id_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StoreUnavailable, match="node-id"):
        write_node_id(tmp_path / "data", "00ff")


def test_a_directory_has_one_digest_however_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert directory_digest(tmp_path / "a" / ".." / "a") == directory_digest(tmp_path / "link")
    assert directory_digest(tmp_path) != directory_digest(tmp_path / "a")
