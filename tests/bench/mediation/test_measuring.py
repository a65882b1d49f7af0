"""The benchmark of mediation measures what it says; timings decide nothing. [ME-8, ME-9]"""

import asyncio
import re
import tempfile
from pathlib import Path

import msgspec
import pytest

from benchmarks.command import NAMES
from benchmarks.mediation import measuring as mediation
from benchmarks.mediation.events import AFFECTED, Form, events, values
from benchmarks.mediation.ratios import by_rounds
from benchmarks.mediation.throughput import seconds_of
from benchmarks.mediation.transformers import generation_ms, one_type, own_types, speeds, weight
from benchmarks.mediation.update import delays
from benchmarks.mediation.ways import (
    AtConsumers,
    Baseline,
    ByHand,
    ByReflection,
    ContentBased,
    Mediated,
    Once,
    Way,
)
from rapport.channel.backends.local import open_embedded
from rapport.core.event import StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.mediation.codegen.transformer import generate

FORMS: tuple[Form, ...] = ("flat", "deep")
GOALS = {1_000_000, 10, 1.2, 5, 0.85, 0.95}
METRICS = (
    r"(baseline|content-based|mediated|reflective|external), HTTP, .*1:(1|10)",
    r"(baseline|content-based|mediated|reflective), flat, in process, .*1:(1|10)",
    r"(baseline|content-based|mediated|reflective), deep, in process, .*1:(1|10)",
    r"mediated / content-based, HTTP, .*1:(1|10)",
    r"mediated / content-based, (flat|deep), in process, .*single events, 1:(1|10), processor",
    r"mediated / content-based, (flat|deep), in process, batches .*, 1:(1|10), processor",
    r"mediated / written by hand, (flat|deep), in process, batches .*, 1:(1|10), processor",
    r"brought to root in the node, (flat|deep), (1|1,000) at a time",
    r"once in the node / at every consumer",
    r"one transformer, batch of values, (flat|deep), (1|5|15) of 15",
    r"transformer / reflective, (flat|deep), (1|5|15) of 15",
    r"1,000 transformers made, (1|10|50|100) rules, (10|50|100)% attributes affected",
    r"time per rule at 100 rules / at 10 rules",
    r"memory per interpretation",
    r"said for (the first consumer|another one), (events of 15 attributes|readings)",
    r"delay (p99|max), .* (1|100) rules, quietest of .* rounds, (no change|changed every 50)",
)


@pytest.mark.long
def test_a_quick_run_gives_every_metric_in_the_fixed_form_with_the_goals_of_the_issue() -> None:
    assert "mediation" in NAMES
    results = mediation.run(quick=True)["results"]
    names = [result["metric"] for result in results]
    assert len(set(names)) == len(names)
    for result in results:
        assert {"metric", "value", "unit", "better", "goal", "ok"} == set(result)
        assert result["value"] > 0, result
        assert (result["goal"] is None) == (result["ok"] is None)
    assert {result["goal"] for result in results} - {None} == GOALS
    for wanted in METRICS:
        assert any(re.match(wanted, name) for name in names), wanted


def stored(form: Form, count: int) -> list[StoredEvent]:
    return [StoredEvent(place, 0, event) for place, event in enumerate(events(form, count), 1)]


@pytest.mark.parametrize("form", FORMS)
def test_ways_that_mediate_tell_consumers_the_same_and_the_others_the_bytes_as_sent(
    form: Form,
) -> None:
    batch = stored(form, 5)
    sent = [item.event.data for item in batch]
    assert Baseline().deliver(batch, 0) == ContentBased().deliver(batch, 0) == sent
    told = Mediated(form, readers=1).deliver(batch, 0)
    assert told == Mediated(form, readers=3).deliver(batch, 2)
    assert told == ByReflection(form, readers=1).deliver(batch, 0)
    assert told == ByReflection(form, readers=1, remembering=True).deliver(batch, 0)
    assert told == AtConsumers(form, consumers=2).deliver(batch, 1)
    by_hand = ByHand(form).deliver(batch, 0)
    assert list(map(rounded, by_hand)) == list(map(rounded, told))
    kelvin = msgspec.json.decode(told[0])["a0"]
    fahrenheit = values(form, AFFECTED, 1)[0]["a0"]
    assert kelvin == pytest.approx((fahrenheit + 459.67) * 5 / 9)


def rounded(data: bytes) -> str:
    """With numbers to nine digits: formulas differ in the last."""
    return re.sub(rb"\d+\.\d+", lambda found: b"%.9g" % float(found[0]), data).decode()


@pytest.mark.parametrize("singly", [True, False])
def test_an_event_is_turned_once_per_interpretation_however_many_consumers_share_it(
    singly: bool,
) -> None:
    shared, own = Mediated("flat", readers=1), AtConsumers("flat", consumers=3)
    asyncio.run(_through(shared, singly))
    asyncio.run(_through(own, singly))
    assert [each.worked for each in shared.readers] == [200]
    assert [each.readers[0].worked for each in own.own] == [200, 200, 200]


async def _through(way: Way, singly: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        channels = open_embedded(Path(directory), SystemClock())
        sent = events("flat", 200)
        await seconds_of(channels, "way", sent, way, consumers=3, singly=singly)
        await channels.close()


def test_what_was_done_for_one_is_not_done_again_for_a_batch_cut_otherwise() -> None:
    batch = stored("flat", 6)
    once = Once(lambda items: [item.position for item in items])
    assert once.of(batch[:4]) == [1, 2, 3, 4]
    assert once.of(batch[2:]) == [3, 4, 5, 6]
    assert once.worked == 6


def test_what_was_done_is_kept_for_the_last_few_thousand_events() -> None:
    batch = stored("flat", 4_500)
    once = Once(lambda items: [item.position for item in items])
    for start in range(0, 4_500, 500):
        once.of(batch[start : start + 500])
    assert once.of(batch[500:]) == list(range(501, 4_501))
    assert once.worked == 4_500
    assert once.of(batch[:500]) == list(range(1, 501))
    assert once.worked == 5_000


def test_a_ratio_is_of_rounds_side_by_side_and_one_that_was_disturbed_does_not_count() -> None:
    assert by_rounds([2.0, 8.0, 20.0], [4.0, 10.0, 25.0]) == 0.8
    assert by_rounds([2.0, 8.0, 20.0, 3.0, 5.0], [2.0, 8.0, 900.0, 3.0, 5.0]) == 1.0


@pytest.mark.parametrize("form", FORMS)
def test_speeds_are_measured_for_every_way(form: Form) -> None:
    found = speeds(form, 5, 60, 1)
    assert all(getattr(found, name) > 0 for name in found.__struct_fields__)


def test_every_rule_of_the_generation_measure_is_met_and_text_grows_with_rules() -> None:
    def text(rules: int) -> int:
        return generate(one_type(rules).plan("child", "T0", "in")).source.count("\n")

    assert text(100) - text(60) == text(60) - text(20)
    plans = [own_types(rules, 0.5).plan("child", "T99", "in") for rules in (1, 100)]
    assert generate(plans[0]).source == generate(plans[1]).source
    assert generation_ms(own_types(10, 0.1), 10, 20) > 0


@pytest.mark.long
def test_an_interpretation_weighs_more_the_more_is_made_of_it() -> None:
    found = weight(10)
    assert 0 < found.declared < found.checked < found.ready


@pytest.mark.long
def test_events_go_on_while_interpretations_change_and_each_change_is_seen() -> None:
    found = asyncio.run(delays(1, 160, changing=True))
    assert len(found.events) == 160
    assert 1 <= len(found.changes) <= 3
    assert 2 <= found.versions <= 4
    assert asyncio.run(delays(1, 20, changing=False)).versions == 1
