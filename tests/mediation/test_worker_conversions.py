"""Plug-in conversions in their own process: they may raise, hang or die; the rest goes on."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rapport.kernel.clock import SystemClock
from rapport.mediation.interpretations.model import ConversionRule
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.site_functions import WorkerConversions

pytestmark = pytest.mark.slow

PLUGINS = """
import os, sys, time

def scale(x, y, factor=2.0):
    return x * factor, y * factor

def one(x):
    return x + 1

def raises(x):
    raise ValueError("no such tile")

def leaves(x):
    sys.exit(3)

def hangs(x):
    while True:
        pass

def sleeps(x):
    time.sleep(60)

def dies(x):
    os._exit(7)

def prints(x):
    print("hello from a plug-in", flush=True)
    return x

def too_many(x):
    return x, x

def strange(x):
    return object()

def much(x):
    return "x" * 5_000_000

not_a_function = 5
"""


@pytest.fixture
def conversions(tmp_path):
    (tmp_path / "strange_plugins.py").write_text(PLUGINS)
    (tmp_path / "broken_plugins.py").write_text("import nothing_of_that_name\n")
    worker = WorkerConversions(SystemClock(), [str(tmp_path)])
    yield worker
    worker.close()


def rule(name, *, take=("x",), give=("x",), deadline_ms=2_000, **arguments):
    call = f"strange_plugins:{name}" if ":" not in name else name
    return ConversionRule(call, take, give, tuple(arguments.items()), deadline_ms)


def code_of(conversions, requests, values=(1.0,)):
    with pytest.raises(RejectedValue) as caught:
        conversions.call(requests, values)
    return caught.value.code


def test_values_and_arguments_arrive_and_results_come_back(conversions):
    both = rule("scale", take=("x", "y"), give=("x", "y"), factor=3.0)
    assert conversions.call(both, (1.0, 2.0)) == (3.0, 6.0)
    assert conversions.call(rule("one"), (1.0,)) == (2.0,)


def test_a_conversion_that_raises_is_rejected_and_its_process_lives_on(conversions):
    with pytest.raises(RejectedValue) as caught:
        conversions.call(rule("raises"), (1.0,))
    assert caught.value.code == "conversion.raised"
    assert "no such tile" in caught.value.message
    assert conversions.call(rule("one"), (1.0,)) == (2.0,)
    assert conversions.restarts == 0


@pytest.mark.parametrize("name", ["hangs", "sleeps"])
def test_a_conversion_that_hangs_is_ended_at_its_deadline_and_the_next_call_works(
    conversions, name
):
    conversions.call(rule("one"), (1.0,))
    began = time.monotonic()
    assert code_of(conversions, rule(name, deadline_ms=100)) == "conversion.timeout"
    assert time.monotonic() - began < 5
    assert conversions.call(rule("one"), (1.0,)) == (2.0,)
    assert conversions.restarts == 1


@pytest.mark.parametrize("name", ["dies", "leaves"])
def test_a_conversion_that_ends_its_process_is_rejected_and_the_next_call_works(conversions, name):
    assert code_of(conversions, rule(name)) == "conversion.died"
    assert conversions.call(rule("one"), (1.0,)) == (2.0,)


def test_the_output_of_a_plug_in_does_not_disturb_its_replies(conversions):
    assert conversions.call(rule("prints"), (4.0,)) == (4.0,)
    assert conversions.call(rule("prints"), (5.0,)) == (5.0,)


def test_results_of_the_wrong_form_are_rejected(conversions):
    assert code_of(conversions, rule("too_many")) == "conversion.bad_result"
    assert code_of(conversions, rule("strange")) == "conversion.raised"
    assert code_of(conversions, rule("much")) == "conversion.died"
    assert conversions.call(rule("one"), (1.0,)) == (2.0,)


@pytest.mark.parametrize(
    "name",
    [
        "broken_plugins:f",
        "no_such_module:f",
        "strange_plugins:absent",
        "strange_plugins:not_a_function",
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_rejected_at_once_afterwards(conversions, name):
    assert code_of(conversions, rule(name)) == "conversion.unavailable"
    began = time.monotonic()
    assert code_of(conversions, rule(name)) == "conversion.unavailable"
    assert time.monotonic() - began < 0.05
    assert conversions.call(rule("one"), (1.0,)) == (2.0,)


def test_after_closing_every_call_is_rejected(conversions):
    conversions.call(rule("one"), (1.0,))
    conversions.close()
    assert code_of(conversions, rule("one")) in ("conversion.unavailable", "conversion.died")
    conversions.close()


def test_closing_ends_a_call_under_way(conversions):
    conversions.call(rule("one"), (1.0,))
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(code_of, conversions, rule("hangs", deadline_ms=60_000))
        while not conversions._lock.locked():
            time.sleep(0.001)
        conversions.close()
        assert pending.result(10) in ("conversion.died", "conversion.unavailable")


def test_a_transformer_calls_a_plug_in_between_units_and_places(conversions, build, event):
    text = """
    [interpretations.scaled]
    identity = { field = "id" }
    value.x = { field = "x", unit = "ft" }
    value.y = { field = "y", unit = "m" }
    relative_to = { table = "sensors", key = "at", x = "x_m", y = "y_m" }
    [[interpretations.scaled.convert]]
    call = "strange_plugins:scale"
    take = ["x", "y"]
    give = ["x", "y"]
    arguments = { factor = 10 }
    deadline = "2s"
    """
    one = build(text, conversions)
    assert one.may_block
    reading = one.apply(event({"id": "a", "at": "r7", "x": 10.0, "y": 1.0}))
    assert reading.payload()["value"] == [10.5 + 30.48, 13.0]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("raises", "conversion.raised"),
        ("hangs", "conversion.timeout"),
        ("dies", "conversion.died"),
        ("strange", "conversion.raised"),
    ],
)
def test_a_bad_plug_in_rejects_only_its_event(conversions, build, event, name, code):
    text = f"""
    [interpretations.strange]
    identity = {{ field = "id" }}
    value.x = {{ field = "x", unit = "m" }}
    value.y = {{ field = "y", unit = "m" }}
    convert = [{{ call = "strange_plugins:{name}", take = "x", give = "x", deadline = "100ms" }}]
    """
    rejection = build(text, conversions).apply(event({"id": "a", "x": 1, "y": 2}))
    assert rejection.code == code
