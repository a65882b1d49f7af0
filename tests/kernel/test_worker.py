"""Functions in a process of their own: the caller says how failures are told. [ME-4, CO-9]"""

from __future__ import annotations

import posixpath
import signal

import pytest

from rapport.kernel.clock import SystemClock
from rapport.kernel.worker import WorkerRequest, reply_to
from rapport.kernel.worker_client import CallFailed, WorkerFunctions

pytestmark = pytest.mark.slow


class Failed(CallFailed):
    """The caller's own kind."""


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "own.py").write_text(
        "import os\n"
        "def add(a, b, times=1):\n    return (a + b) * times\n"
        "def raises():\n    raise ValueError('no')\n"
        "def dies():\n    os._exit(1)\n"
    )
    made = WorkerFunctions(
        SystemClock(), [str(tmp_path)], group="privacy", what="rule", codes="rule", failure=Failed
    )
    yield made
    made.close()


def test_a_call_has_values_and_arguments(functions):
    assert functions.call_one("own:add", [1, 2], 2_000, {"times": 3}).results == [9]
    assert functions.call_one("own:raises", [], 2_000).outcome == "raised"


def test_failures_are_of_the_callers_kind_and_code(functions):
    for name, code in (("own:dies", "rule.died"), ("own:gone", "rule.unavailable")):
        with pytest.raises(Failed) as failed:
            functions.call_one(name, [], 2_000)
        assert failed.value.code == code
        assert failed.value.message.startswith("the ")
    with pytest.raises(Failed) as failed:
        functions.call_one("own:add", [object()], 2_000)
    assert failed.value.code == "value.not_sendable"


def test_a_name_without_a_module_is_a_plug_in_of_the_callers_group(functions):
    assert "no-such-plug-in" in functions.fault_of("no-such-plug-in")
    assert functions.fault_of("own:add") == ""


def test_after_closing_every_call_fails(functions):
    functions.close()
    with pytest.raises(Failed) as failed:
        functions.call_one("own:add", [1, 2], 2_000)
    assert failed.value.code == "rule.unavailable"


@pytest.mark.parametrize(
    "request_made",
    [
        WorkerRequest("posixpath:basename", 60_000),
        WorkerRequest("posixpath:no_such", 60_000),
        WorkerRequest("posixpath:basename", 60_000, ["/a/b"]),
        WorkerRequest("posixpath:basename", 60_000, []),
    ],
    ids=["loaded", "cannot be loaded", "called", "raises"],
)
def test_no_alarm_is_left_when_a_request_was_answered(request_made):
    """Else a worker that only loaded a function would end half a minute later, and the first call
    of it would fail.
    """

    def load(call: str):
        return getattr(posixpath, call.partition(":")[2])

    try:
        reply_to(request_made, load)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
