import inspect
from pathlib import Path

from rapport.core import errors
from rapport.core.errors import (
    PolicyError,
    Problem,
    RapportError,
    UnknownName,
    excerpt_with_caret,
    nearest_names,
)


def classes() -> dict[str, type[RapportError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, RapportError) and not name.startswith("_")
    }


def test_the_docstring_draws_the_tree_of_classes() -> None:
    drawn: dict[str, str | None] = {}
    stack: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.strip()
        if name in classes():
            depth = (len(line) - len(line.lstrip())) // 2
            stack = [*stack[:depth], name]
            drawn[name] = stack[-2] if depth else None
    assert set(drawn) == set(classes())
    for name, parent in drawn.items():
        if parent is not None:
            assert issubclass(classes()[name], classes()[parent])


def test_the_reference_page_lists_every_class_with_its_code() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/errors.md").read_text()
    for name, kind in classes().items():
        assert f"| `{name}` | `{kind.code}` | {kind.status} |" in page


def test_an_unknown_name_offers_the_nearest() -> None:
    error = UnknownName("concept", "persn", ["person", "room"])
    assert error.nearest == ("person",)
    assert "did you mean 'person'?" in error.hint


def test_a_policy_error_tells_all_problems() -> None:
    error = PolicyError(
        [Problem(code="a.b", message="first", line=1), Problem(code="c.d", message="second")]
    )
    assert error.code == "a.b"
    assert "first" in str(error)
    assert "second" in str(error)


def test_far_names_are_not_offered() -> None:
    assert nearest_names("zebra", ["position"]) == ()


def test_an_excerpt_of_a_line_that_is_not_there_is_empty() -> None:
    assert excerpt_with_caret("one line", 7, 1) == ""
