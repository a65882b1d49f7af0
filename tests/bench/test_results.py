"""Benchmarks give the fixed form; goals are the issues' numbers, never our own. Timings decide
nothing.
"""

import json

import pytest

from rapport.cli.main import run

GOALS = {
    "channel": {150_000, 5_000, 0.4, 2.0, 1.5, 8_000, 60_000},
    "policy": {1.5, 2, 5, 20, 50, 100_000, 600_000, 1_500_000},
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(GOALS))
def test_a_benchmark_gives_the_fixed_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", name, "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["name"] == name
    assert report["commit"]
    assert report["machine"]["cores"] >= 1
    for result in report["results"]:
        assert {"metric", "value", "unit", "better", "goal", "ok"} == set(result)
        assert result["better"] in ("higher", "lower")
        assert result["value"] >= 0
        assert (result["goal"] is None) == (result["ok"] is None)
    assert {result["goal"] for result in report["results"]} - {None} == GOALS[name]
