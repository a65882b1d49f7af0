"""Roles: sets of rights for people."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rapport.channel.access.identities import (
    EVERYTHING,
    ROLES,
    Grant,
    access_from_site,
    open_admission,
)
from rapport.core.errors import NotAllowed
from rapport.kernel.toml import TomlFile


def read(tmp_path: Path, text: str) -> TomlFile:
    (tmp_path / "site.toml").write_text(text)
    return TomlFile.load(tmp_path / "site.toml")


def test_each_role_includes_the_ones_before_it() -> None:
    for lower, higher in pairwise(ROLES):
        assert Grant(role=higher).includes(lower)
        assert not Grant(role=lower).includes(higher)
    assert EVERYTHING.includes("admin")
    assert Grant(admin=True).includes("admin")
    assert not Grant(subscribe=("*",)).includes("viewer")


def test_a_person_with_a_role_needs_no_token_and_closes_the_node(tmp_path: Path) -> None:
    file = read(tmp_path, '[access.ana]\nrole = "operator"\n[access.bo]\nrole = "admin"\n')
    access, problems = access_from_site(file)
    assert problems == []
    admission = open_admission(access, tmp_path)
    assert admission.is_closed()
    rights = admission.rights
    assert [rights.role_of(name) for name in ("ana", "bo", "eve")] == ["operator", "admin", ""]
    assert rights.allows("ana", "subscribe", "log")
    assert not rights.allows("ana", "publish", "raw.x")
    assert rights.allows_admin("bo")
    with pytest.raises(NotAllowed) as caught:
        rights.check_role("ana", "editor")
    assert caught.value.code == "access.no_role"


def test_an_unknown_role_is_a_problem_at_its_place(tmp_path: Path) -> None:
    file = read(tmp_path, '[access.ana]\ntoken = "env:ANA"\nrole = "chief"\n')
    access, (problem,) = access_from_site(file)
    assert (problem.code, problem.line) == ("access.bad_role", 3)
    assert "viewer, operator, editor, admin" in problem.hint
    assert not access.identities["ana"].grant.includes("viewer")
