"""Policies with wrong names, types, units and too many ends, and exactly what is said of them.

`pytest tests/golden tests/policy/compiler --rewrite-golden` writes what is said now.
"""

from pathlib import Path

import pytest

from rapport.core.errors import PolicyError
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import Ontology

FILES = sorted((Path(__file__).parent / "wrong").glob("*.dpl"))


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FILES])
def test_the_problems_of_a_wrong_policy_have_hints(
    path: Path, every_form: Ontology, request: pytest.FixtureRequest
) -> None:
    text = path.read_text(encoding="utf-8")
    with pytest.raises(PolicyError) as caught:
        compile_policy(text, name=path.stem, ontology=every_form, window_ms=5000)
    problems = caught.value.problems
    assert all(each.line and each.column and each.excerpt and each.hint for each in problems)
    said = "".join(f"{each.code}\n{each.as_text()}\n" for each in problems)
    expected = path.with_suffix(".expected")
    if request.config.getoption("--rewrite-golden", default=False):
        expected.write_text(said, encoding="utf-8")
    assert said == expected.read_text(encoding="utf-8")


def test_there_are_many() -> None:
    assert len(FILES) >= 25
