"""`rapport replay` gives exactly the worked cases' bytes, however the events come and are cut."""

import random
import shutil
from pathlib import Path

import pytest

from rapport.cli.main import run

SMALL = sorted(
    path.stem for path in (Path(__file__).parents[2] / "data/checks/small-policies").glob("*.dpl")
)


def replayed(tmp_path: Path, site: Path, *arguments: str) -> bytes:
    out = tmp_path / "out.jsonl"
    assert run(["replay", "--site", str(site), "--out", str(out), *arguments]) == 0
    return out.read_bytes()


@pytest.fixture
def building(tmp_path: Path, checks: Path) -> Path:
    return Path(shutil.copytree(checks / "secure-building", tmp_path / "site"))


@pytest.mark.parametrize("batch", [pytest.param("1", marks=pytest.mark.slow), "10000"])
def test_secure_building_in_any_batch_size(tmp_path: Path, building: Path, batch: str) -> None:
    expected = (building / "expected.jsonl").read_bytes()
    assert replayed(tmp_path, building, "--batch", batch) == expected


def test_secure_building_shuffled_within_the_lateness(tmp_path: Path, building: Path) -> None:
    lines = (building / "events.csv").read_text().splitlines()
    chance = random.Random(5)
    delayed = sorted(lines[1:], key=lambda line: int(line.split(",")[1]) + chance.uniform(0, 1_999))
    shuffled = building / "shuffled.csv"
    shuffled.write_text("\n".join([lines[0], *delayed]) + "\n")
    expected = (building / "expected.jsonl").read_bytes()
    assert replayed(tmp_path, building, "--events", str(shuffled)) == expected


@pytest.mark.parametrize("stop", ["1", "9999", "19999"])
def test_secure_building_stopped_and_resumed(tmp_path: Path, building: Path, stop: str) -> None:
    expected = (building / "expected.jsonl").read_bytes()
    first = replayed(tmp_path, building, "--stop-after", stop)
    assert expected.startswith(first)
    assert first != expected
    assert replayed(tmp_path, building, "--resume") == expected


def test_resuming_with_another_policy_is_refused(
    tmp_path: Path, building: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replayed(tmp_path, building, "--stop-after", "5000")
    policy = building / "secure-building.dpl"
    policy.write_text(policy.read_text().replace("5m", "6m"))
    assert run(["replay", "--site", str(building), "--resume"]) != 0
    assert "replay" in capsys.readouterr().err


@pytest.mark.parametrize("policy", SMALL)
@pytest.mark.parametrize("events", ["events.csv", "events_shuffled.csv"])
def test_small_policies(tmp_path: Path, checks: Path, policy: str, events: str) -> None:
    site = checks / "small-policies"
    expected = (site / f"{policy}.expected.jsonl").read_bytes()
    arguments = ("--policy", policy, "--events", str(site / events), "--batch", "7")
    assert replayed(tmp_path, site, *arguments) == expected


def test_an_unknown_policy_offers_the_nearest(
    checks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = str(checks / "small-policies")
    assert run(["replay", "--site", site, "--policy", "and-nott"]) == 2
    assert "and-not" in capsys.readouterr().err


def test_bad_rows_are_reported_and_the_rest_goes_on(
    tmp_path: Path, building: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = building / "events.csv"
    events.write_text(events.read_text() + "e99999,soon,1,2,3\ne99998,99999999,1,two,3\n")
    out = tmp_path / "out.jsonl"
    assert run(["replay", "--site", str(building), "--out", str(out)]) == 1
    assert out.read_bytes() == (building / "expected.jsonl").read_bytes()
    assert "events.csv:20002" in capsys.readouterr().err


def test_the_summary_tells_what_is_undecided_and_who_was_silent(
    tmp_path: Path, building: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = building / "site.toml"
    promise = '[sources.positions]\nperiod = "1ms"'
    site.write_text(site.read_text().replace("[sources.positions]", promise))
    expected = (building / "expected.jsonl").read_bytes()
    assert replayed(tmp_path, building) == b""
    said = capsys.readouterr().err
    assert f"{expected.count(b'{') // 2:,} undecided (silent: positions)" in " ".join(said.split())
