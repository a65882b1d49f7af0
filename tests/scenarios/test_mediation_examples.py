"""The five applications of the source give the same by hand and declared, and what is said about
their effort is so. [ME-15]
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.effort import table as effort
from support.effort.lines import Line, lines_of
from support.effort.uses import uses_by_hand

HARNESS = effort.load_harness()
STEPS = ("start", "joined", "changed", "added")
COUNT = 1_000


def application(name: str, step: str) -> Any:
    return HARNESS.Application(effort.EXAMPLES / name, step)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", effort.APPLICATIONS)
def test_every_receiver_gets_the_same_by_hand_and_mediated(name: str, step: str) -> None:
    played = application(name, step)
    mediated = played.play(HARNESS.Mediated(played), COUNT)
    by_hand = played.play(HARNESS.ByHand(played), COUNT)
    assert len(mediated) == len(by_hand) >= COUNT
    for one, other in zip(mediated, by_hand, strict=True):
        assert HARNESS.is_same(one, other), f"{one}\n{other}"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", effort.APPLICATIONS)
def test_everybody_hears_everybody_and_all_types_of_events_are_sent(name: str, step: str) -> None:
    played = application(name, step)
    heard = {(each[1], each[0]) for each in played.play(HARNESS.Mediated(played), COUNT)}
    assert heard == {(sender.name, receiver.name) for sender, receiver in played.pairs()}
    kinds = {(sent.sender, sent.kind) for sent in played.events(COUNT)}
    senders = [each for each in played.participants if each.sends]
    expected = len(played.workload.KINDS) - (step != "added")
    assert len(kinds) == expected * len(senders)


def test_a_difference_between_the_two_would_be_seen() -> None:
    event = {"at": [{"x": 1.0}], "name": "a"}
    assert HARNESS.is_same(event, {"at": [{"x": 1.0 + 1e-12}], "name": "a"})
    assert not HARNESS.is_same(event, {"at": [{"x": 1.000001}], "name": "a"})
    assert not HARNESS.is_same(event, {"at": [], "name": "a"})
    assert not HARNESS.is_same(event, {"at": [{"x": 1.0}]})


@pytest.mark.parametrize("name", effort.APPLICATIONS)
def test_who_was_there_before_does_not_notice_who_joins(name: str) -> None:
    texts = []
    for step in ("start", "joined"):
        mediated = HARNESS.Mediated(application(name, step))
        for sent in application(name, "start").events(200):
            for receiver in application(name, "start").participants:
                mediated(sent, receiver)
        found = mediated.transformers.items()
        texts.append({asked: made.source for asked, made in found if made is not None})
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", effort.APPLICATIONS)
def test_who_joins_or_changes_touches_no_interpretation_of_others(name: str) -> None:
    folder = effort.EXAMPLES / name / "declared"
    before = {path.stem for path in (folder / "start").iterdir() if path.is_file()}
    joined = {path.stem for path in (folder / "joined").iterdir() if path.is_file()}
    assert joined & before <= {"functions"}
    assert len(joined - before) == 1
    changed = {path.stem for path in (folder / "changed").iterdir() if path.is_file()}
    assert len(changed & before - {"functions"}) <= 1


def test_a_replaced_type_is_a_change_of_root_that_its_speakers_see_and_others_do_not() -> None:
    for name in ("highway", "emergency"):
        held = HARNESS.declared(application(name, "changed"))
        before = HARNESS.declared(application(name, "start"))
        assert len(held.replacements) == 1
        for each in before.registered:
            now, then = held.named(each), before.named(each)
            assert (now.types, now.mappings, now.rules) == (then.types, then.mappings, then.rules)


@pytest.mark.parametrize("name", effort.APPLICATIONS)
def test_code_by_hand_knows_nothing_of_mediation(name: str) -> None:
    for path in (effort.EXAMPLES / name / "by_hand").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rapport"):
                assert node.module == "rapport.units.coordinates", path


def test_lines_are_as_long_as_everywhere_so_that_counting_them_is_fair() -> None:
    for path in effort.EXAMPLES.rglob("*"):
        if path.suffix in (".py", ".toml", ".yaml", ".xml"):
            assert max(map(len, path.read_text().splitlines())) <= 100, path


@pytest.mark.slow
@pytest.mark.parametrize("name", effort.APPLICATIONS)
def test_the_example_runs_as_its_readme_says_and_prints_what_came_of_it(name: str) -> None:
    command = f"examples/mediation/{name}/run.py"
    assert f"./run python {command}" in (effort.EXAMPLES / name / "README.md").read_text()
    done = subprocess.run(
        [sys.executable, command], cwd=effort.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("both ways give the same") == len(STEPS)
    assert "For example" in done.stdout


def test_what_differs_is_counted_and_makes_the_run_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(HARNESS, "is_same", lambda one, other: False)
    assert HARNESS.show(effort.EXAMPLES / "architecture", 20) == 1
    assert "20 DIFFER" in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_about_effort_is_true() -> None:
    page = effort.PAGE.read_text()
    assert effort.page_with(effort.tables(), page) == page, "run effort.table --write"


def test_declaring_takes_fewer_lines_of_transformation_everywhere() -> None:
    for name in effort.APPLICATIONS:
        by_hand, declared = (
            effort.size(effort.EXAMPLES / name, side, ["transformation"]).lines
            for side in ("by_hand", "declared")
        )
        assert declared < by_hand


def counted(path: Path, text: str) -> list[tuple[str, str, int]]:
    path.write_text(text)
    return [tuple(line) for line in lines_of(path)]


def test_lines_of_python_are_counted_without_comments_docstrings_and_imports(
    tmp_path: Path,
) -> None:
    text = '"""About."""\n\nimport math\n\nSIX = 6  # half a dozen\n"""Attribute."""\n\n\n'
    text += "def f(x):\n    # why\n    return x * 2\n"
    assert counted(tmp_path / "a_to_b.py", text) == [
        ("transformation", "SIX = 6  # half a dozen", 3),
        ("transformation", "def f(x):", 6),
        ("transformation", "return x * 2", 4),
    ]
    assert {line.part for line in lines_of_copy(tmp_path, "conversions.py", text)} == {
        "conversions"
    }


def lines_of_copy(folder: Path, name: str, text: str) -> list[Line]:
    (folder / name).write_text(text)
    return lines_of(folder / name)


def test_lines_of_annotations_are_types_mappings_and_conversions(tmp_path: Path) -> None:
    text = 'T = NewType("T", int)\n\n\n@context("a")\n@maps_to("B")\nclass A:\n    t: T\n\n\n'
    text += "@conv_function()\ndef f(t: T) -> int:\n    return t\n"
    parts = [line.part for line in lines_of_copy(tmp_path, "a.py", text)]
    assert parts == [*["types"] * 2, "transformation", *["types"] * 2, *["conversions"] * 3]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.toml",
            "# about\n[interpretations.a]\nrules = []\n[interpretations.a.conversions.c]\n"
            'call = "x"\n\n[interpretations.a.types]\nA = { b = "text" }\n',
        ),
        (
            "a.yaml",
            "# about\ninterpretations:\n  a:\n    conversions:\n      c: { call: x }\n"
            "    types:\n      A: { b: text }\n",
        ),
        (
            "a.xml",
            '<!-- about -->\n<context id="a">\n</context>\n<functions>\n</functions>\n'
            '<types>\n  <type name="A"/></types>\n',
        ),
    ],
)
def test_lines_of_declarations_are_told_apart(tmp_path: Path, name: str, text: str) -> None:
    parts = [line.part for line in lines_of_copy(tmp_path, name, text)]
    assert parts == [*["transformation"] * 2, *["conversions"] * 2, *["types"] * 2]


def test_tokens_of_declarations_are_words_texts_and_signs(tmp_path: Path) -> None:
    (line,) = lines_of_copy(tmp_path, "a.toml", 'A = { b = "m/s", c = 1.5 }\n')
    assert line.tokens == 11


def test_an_edit_counts_lines_written_places_and_what_must_be_read(tmp_path: Path) -> None:
    for step, text in (
        ("start", "a = 1\nb = 2\nc = 3\n"),
        ("added", "a = 1\nb = 5\nc = 3\nd = 4\n"),
    ):
        (tmp_path / "by_hand" / step).mkdir(parents=True)
        (tmp_path / "by_hand" / step / "x_to_y.py").write_text(text)
    (tmp_path / "by_hand/added/z_to_y.py").write_text("z = 1\n")
    assert effort.edit(tmp_path, "by_hand", "added") == effort.Edit(
        written=3, transformation=3, new_files=1, touched=1, places=2, to_read=3
    )


def test_uses_of_conversions_by_hand_are_counted_by_name(tmp_path: Path) -> None:
    text = "from .conversions import METRE\n\n\ndef f(e):\n    return _g(e), _g(e)\n\n\n"
    text += "def _g(e):\n    return e * METRE\n"
    (tmp_path / "a_to_b.py").write_text(text)
    (tmp_path / "conversions.py").write_text("METRE = 1\nOTHER = METRE\n")
    assert uses_by_hand(sorted(tmp_path.iterdir())) == {"a_to_b._g": 2, "METRE": 1}


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table 'x'"):
        effort.page_with({"x": "| |"}, "# Page\n")


@pytest.mark.slow
def test_the_command_prints_the_tables_and_refuses_other_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert effort.main(["--wrong"]) == 2
    assert effort.main([]) == 0
    assert "`supply_chain` (SPECjms2007)" in capsys.readouterr().out
