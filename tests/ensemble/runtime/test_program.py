"""Files of components and ensembles: what they say, and what is wrong with others. [EN-10]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.errors import InvalidInput
from rapport.ensemble.runtime.program import load_program

GOOD = """
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.model.role import Role
from rapport.ensemble.runtime.node_status import RuntimeSettings

class Named(Role):
    name: str

class Car(Component, Named):
    name: str = "car"
    met: list[str] = []

class Meeting(Ensemble, every="1 s"):
    coordinator: Car
    member: Named

    def membership(coordinator, member):
        return True

    def exchange(coordinator, member):
        coordinator.met = sorted({*coordinator.met, member.name})

settings = RuntimeSettings(gossip=GossipSettings(knowledge_ms=100))

def components(node):
    return [Car(id=f"car-{node}")]
"""


def written(directory: Path, text: str) -> Path:
    file = directory / "cars.py"
    file.write_text(text)
    return file


def test_a_file_gives_components_ensembles_and_settings(tmp_path: Path) -> None:
    program = load_program(written(tmp_path, GOOD), "n1")
    assert [one.id for one in program.components] == ["car-n1"]
    assert [one.__name__ for one in program.ensembles] == ["Meeting"]
    assert program.settings.gossip.knowledge_ms == 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "`components` is missing"),
        ("components = [1, 2]", "`components` is missing"),
        ("def components(node): raise KeyError(node)", "KeyError"),
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("raise SystemExit(3)", "SystemExit"),
        ("this is no Python", "SyntaxError"),
        (GOOD + "ensembles = [1]", "`ensembles`"),
        (GOOD + "settings = {}", "RuntimeSettings"),
    ],
    ids=["none", "numbers", "raises", "import", "exit", "syntax", "ensembles", "settings"],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        load_program(written(tmp_path, text), "n1")
    assert raised.value.code == "ensemble.bad_program"
    assert said in raised.value.message
    assert "cars.py" in raised.value.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        load_program(tmp_path / "nothing.py", "n1")
