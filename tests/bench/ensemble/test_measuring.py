"""The benchmark of ensembles measures what it says; timings decide nothing. [EN-11, EN-12]"""

import importlib
import sys
from typing import Any

import pytest

from benchmarks.command import NAMES, bench
from benchmarks.ensemble import measuring as ensemble
from benchmarks.ensemble.node import load_node
from benchmarks.ensemble.simulated import huge, large, sweep
from benchmarks.ensemble.with_simpy import against_simpy, on_scheduler
from rapport.core.errors import InvalidInput, UnknownName


def metrics(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {str(result["metric"]): result["value"] for result in results}


def test_the_benchmark_has_a_name_and_parts() -> None:
    assert "ensemble" in NAMES
    with pytest.raises(UnknownName):
        ensemble.run(quick=True, part="parts")
    with pytest.raises(InvalidInput):
        bench("channel", part="sweep")


def test_a_rumour_reaches_all() -> None:
    found = ensemble.run(quick=True, part="rumours")["results"]
    assert any("all 100,000 know" in str(one["metric"]) for one in found)


def test_the_same_program_ends_the_same_way() -> None:
    ran = on_scheduler(2_000.0)
    assert ran == on_scheduler(2_000.0)
    assert ran.arrived > 1_000
    assert ran.beats > ran.arrived


def test_without_simpy_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simpy", None)
    (result,) = against_simpy(True)
    assert result["ok"] is None


@pytest.mark.long
def test_simpy_runs_the_same_program_to_the_same_end() -> None:
    pytest.importorskip("simpy")
    simpy = importlib.import_module("simpy")
    module = importlib.import_module("benchmarks.ensemble.with_simpy")
    assert module.on_simpy_callbacks(simpy, 2_000.0) == on_scheduler(2_000.0)
    assert module.on_simpy_processes(simpy, 2_000.0) == on_scheduler(2_000.0)


@pytest.mark.long
def test_a_real_node_takes_in_and_passes_on_what_it_is_sent() -> None:
    found = load_node(0.2, tells=True)
    assert found.received > 0
    assert found.returned == found.received == found.sent == found.told
    assert found.processor_s > 0


@pytest.mark.long
def test_the_sweep_shows_the_published_shape() -> None:
    (shape,) = [one for one in sweep(True) if "shape" in str(one["metric"])]
    assert shape["ok"] is True


@pytest.mark.long
def test_large_cities_deliver() -> None:
    for part in (large, huge):
        found = metrics(part(True))
        (deliveries,) = [value for name, value in found.items() if name.endswith(": deliveries")]
        assert deliveries > 5_000
