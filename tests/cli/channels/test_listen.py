"""`rapport listen` where no node runs: said once, with the command that starts it. [CH-7, UX-3]"""

from __future__ import annotations

import pytest

from rapport.channel.agents.connection import Reason
from rapport.cli.events import _report_once


def test_a_node_that_does_not_run_is_said_once_with_the_command_that_starts_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = Reason("node.unreachable", "no node answers at http://127.0.0.1:9: Connection refused")
    told = _report_once(lost, None, "rapport up --site mine")
    assert _report_once(lost, told, "rapport up --site mine") == lost
    assert capsys.readouterr().err.splitlines() == [
        "no node answers at http://127.0.0.1:9: Connection refused; trying again",
        "hint: start it: rapport up --site mine",
    ]


def test_another_trouble_has_nothing_to_do_with_starting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _report_once(Reason("node.busy", "the node is busy"), None, "rapport up")
    assert capsys.readouterr().err == "the node is busy; trying again\n"
