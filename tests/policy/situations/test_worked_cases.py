"""`replay` gives the expected lines of every worked case, however it is cut and resumed. [SI-11]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.detection import detection_lines
from rapport.policy.plan import PolicyPlan
from rapport.policy.replay.replay import recordings_of, replay
from rapport.site.site import Site, load_site

CASES = Path(__file__).parents[2] / "data" / "situations"
NAMES = sorted(path.stem for path in CASES.glob("*.dpl"))


@pytest.fixture(scope="module")
def site() -> Site:
    return load_site(CASES)


def expected(name: str) -> bytes:
    return (CASES / f"{name}.expected.jsonl").read_bytes()


def lines(site: Site, plans: list[PolicyPlan], batch: int = 10_000) -> dict[str, bytes]:
    recordings = recordings_of(site.ontology, CASES)
    found = replay(site.ontology, site.tables, plans, recordings, lateness_ms=0, batch=batch)
    assert not found.problems
    return {
        plan.policy: detection_lines(one for one in found.detections if one.policy == plan.policy)
        for plan in plans
    }


@pytest.mark.parametrize("name", NAMES)
def test_replay_gives_the_expected_lines(site: Site, name: str) -> None:
    assert lines(site, [site.policies[name].plan])[name] == expected(name)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 13, 10_000])
def test_all_policies_together_give_the_same_lines_in_batches(site: Site, batch: int) -> None:
    found = lines(site, [one.plan for one in site.policies.values()], batch)
    assert found == {name: expected(name) for name in NAMES}


@pytest.mark.slow
def test_a_replay_that_is_stopped_and_resumed_gives_the_same_lines(
    site: Site, tmp_path: Path
) -> None:
    plans = [one.plan for one in site.policies.values()]
    recordings = recordings_of(site.ontology, CASES)
    resume = False
    while True:
        found = replay(
            site.ontology,
            site.tables,
            plans,
            recordings,
            lateness_ms=0,
            stop_after=29,
            resume=resume,
            state_directory=tmp_path,
        )
        resume = True
        if not found.stopped:
            break
    together = b"".join(expected(name) for name in NAMES).splitlines()
    assert sorted(detection_lines(found.detections).splitlines()) == sorted(together)
