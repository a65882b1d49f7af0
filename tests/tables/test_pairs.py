"""Functions that are looked up: numbers by one or two texts. [PO-2]"""

from pathlib import Path

import pytest

from rapport.core.errors import SiteError, UnknownName
from rapport.policy.operators.base import PullData
from rapport.tables.declaration import PairDeclaration, TableDeclaration
from rapport.tables.tables import Tables

TABLE = TableDeclaration(name="distances", csv="distances.csv", key="a")
MINIMUM = PairDeclaration(
    function="minimumDistance", table="distances", keys=("a", "b"), value="metres", symmetric=True
)


def load(site: Path, text: str, *pairs: PairDeclaration, **changes: str) -> Tables:
    (site / "distances.csv").write_text(text, encoding="utf-8")
    given = {"name": "distances", "csv": "distances.csv", "key": "a"} | changes
    return Tables.load(site, [TableDeclaration(**given)], {}, pairs=pairs or (MINIMUM,))


def faults(site: Path, text: str, *pairs: PairDeclaration) -> list[tuple[int, int, str]]:
    with pytest.raises(SiteError) as caught:
        load(site, text, *pairs)
    assert all(problem.hint for problem in caught.value.problems)
    return [(p.line, p.column, p.code) for p in caught.value.problems]


def test_a_symmetric_table_is_found_in_both_orders(tmp_path: Path) -> None:
    text = "a,b,metres\nacid,base,5\nacid,acid,0\nbase,oil,2.5\nbase,acid,5\noil,acid,\n"
    tables: PullData = load(tmp_path, text)
    assert dict(tables.pairs("minimumDistance")) == {
        ("acid", "base"): 5.0,
        ("base", "acid"): 5.0,
        ("acid", "acid"): 0.0,
        ("base", "oil"): 2.5,
        ("oil", "base"): 2.5,
    }
    with pytest.raises(UnknownName):
        tables.pairs("minimumDistances")


def test_one_order_does_not_stand_for_the_other_unless_declared_symmetric(tmp_path: Path) -> None:
    plain = PairDeclaration(function="f", table="distances", keys=("a", "b"), value="metres")
    one = PairDeclaration(function="g", table="distances", keys=("b",), value="metres")
    pairs = load(tmp_path, "a,b,metres\nx,y,1\ny,x,2\n", plain, one)
    assert dict(pairs.pairs("f")) == {("x", "y"): 1.0, ("y", "x"): 2.0}
    assert dict(pairs.pairs("g")) == {("y",): 1.0, ("x",): 2.0}


def test_numbers_are_read_with_the_decimal_sign_of_the_table(tmp_path: Path) -> None:
    text = 'a,b,metres\nx,y,"1,5"\n'
    assert load(tmp_path, text, decimal=",").pairs("minimumDistance")["y", "x"] == 1.5
    assert faults(tmp_path, text) == [(2, 3, "tables.bad_number")]


def test_odd_characters_are_kept(tmp_path: Path) -> None:
    text = 'a,b,metres\n"x, ""y""\n\'z",ü/ß,1\n'
    assert load(tmp_path, text).pairs("minimumDistance")["ü/ß", 'x, "y"\n\'z'] == 1.0


def test_faults_have_their_place(tmp_path: Path) -> None:
    text = "a,b,metres\nx,y,1\nx,y,1\ny,x,2\n,z,1\nz,z,far\n"
    assert faults(tmp_path, text) == [
        (6, 3, "tables.bad_number"),
        (3, 1, "tables.duplicate_pair"),
        (4, 3, "tables.contrary_pair"),
        (5, 1, "tables.empty_key"),
    ]
    assert faults(tmp_path, "a,b,feet\n") == [(1, 0, "tables.missing_column")]
    elsewhere = PairDeclaration(function="f", table="distance", keys=("a",), value="metres")
    assert faults(tmp_path, "a,b,metres\n", elsewhere) == [(0, 0, "tables.unknown_table")]


def test_a_table_for_look_ups_still_needs_keys_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(SiteError) as caught:
        load(
            tmp_path,
            "a,b,metres\nx,y,1\nx,z,1\n",
            PairDeclaration(function="f", table="other", keys=("a",), value="metres"),
        )
    assert [problem.code for problem in caught.value.problems] == ["tables.duplicate_key"]


def test_many_faults_are_cut_off(tmp_path: Path) -> None:
    assert len(faults(tmp_path, "a,b,metres\n" + "x,y,1\n" * 100)) == 20
