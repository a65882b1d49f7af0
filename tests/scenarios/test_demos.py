"""One command plays a scenario. [PO-17]"""

from __future__ import annotations

import pytest

from rapport.cli.main import WRONG_USE, run


@pytest.mark.slow
def test_the_dangerous_goods_play_from_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "dangerous-goods"]) == 0
    said = capsys.readouterr().out
    assert "Found: as they should be" in said
    assert "acid-2 and acetone-2 stand too near each other on truck t2" in said
    assert "Why was this message sent?" in said


def test_a_scenario_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "secure-bilding"]) == WRONG_USE
    assert "dangerous-goods" in capsys.readouterr().err
