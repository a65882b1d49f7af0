import pytest

from rapport.cli.main import run


@pytest.mark.slow
def test_the_demo_plays_its_scenes_and_says_what_to_try_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["demo", "--no-spark"]) == 0
    said = capsys.readouterr().out
    assert "Alarms raised: as they should be" in said
    assert "Undecided" in said
    assert "ana pressed the button" in said
    assert "Why was this message sent?" in said
    assert "What to try next" in said
