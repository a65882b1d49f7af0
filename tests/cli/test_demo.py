import pytest

from rapport.cli.main import run


@pytest.mark.slow
def test_the_demo_ends_with_one_screen_of_alarms_answers_and_where_to_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["demo", "--no-spark"]) == 0
    said = capsys.readouterr().out
    assert "3 alarms, as it should be" in said
    assert "ana answered after" in said
    assert "nobody answered in time, so lea was asked" in said
    assert "undecided p08 in depot: gate was silent, so nobody was woken" in said
    assert "./run rapport init my-site" in said
    assert len(said.splitlines()) <= 40
    ending = said[said.index("3 alarms") :]
    assert len(ending.splitlines()) <= 24
    assert all(len(line) <= 120 for line in ending.splitlines())
