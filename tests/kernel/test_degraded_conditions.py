"""What degrades a node: begun, kept, ended, with a warning at both ends."""

from __future__ import annotations

from structlog.testing import capture_logs

from rapport.kernel.clock import ManualClock
from rapport.kernel.telemetry import DegradedCondition, DegradedConditions


def test_a_condition_holds_from_its_beginning_to_its_end() -> None:
    clock = ManualClock(1_000)
    conditions = DegradedConditions(clock)
    conditions.begin("policy.late.b", "3 of 100 late")
    clock.set_ms(2_000)
    conditions.begin("policy.late.a", "2 of 100 late")
    conditions.begin("policy.late.b", "4 of 100 late")
    assert conditions.current() == [
        DegradedCondition("policy.late.b", "4 of 100 late", 1_000),
        DegradedCondition("policy.late.a", "2 of 100 late", 2_000),
    ]
    conditions.end("policy.late.b")
    conditions.end("policy.late.b")
    assert [one.name for one in conditions.current()] == ["policy.late.a"]


def test_a_warning_is_written_when_a_condition_begins_and_when_it_ends_and_not_in_between() -> None:
    clock = ManualClock(1_000)
    conditions = DegradedConditions(clock)
    with capture_logs() as lines:
        conditions.begin("policy.late.a", "2 of 100 late")
        conditions.begin("policy.late.a", "3 of 100 late")
        clock.set_ms(6_000)
        conditions.end("policy.late.a")
        conditions.end("policy.late.a")
    assert lines == [
        {
            "event": "degraded",
            "log_level": "warning",
            "condition": "policy.late.a",
            "reason": "2 of 100 late",
        },
        {
            "event": "no longer degraded",
            "log_level": "warning",
            "condition": "policy.late.a",
            "lasted_ms": 5_000,
        },
    ]
