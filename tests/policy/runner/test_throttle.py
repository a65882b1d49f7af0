"""`at most once per`: in the order of the output, whatever was found when, counted, saved."""

from __future__ import annotations

from rapport.core.detection import Detection
from rapport.policy.operators.columns import pack_state, unpack_state
from rapport.policy.operators.detection_output import Throttle


def found(time: int, who: str = "1", *causes: str) -> Detection:
    return Detection(
        policy="p",
        version="v",
        time=time,
        bindings={"A": who},
        causes=tuple((time, id) for id in causes),
    )


def times(detections: list[Detection]) -> list[int]:
    return [item.time for item in detections]


def test_a_detection_less_than_the_time_after_one_reported_is_left_out() -> None:
    throttle = Throttle(10)
    throttle.take([found(0), found(9), found(10), found(19), found(20)])
    assert times(throttle.release(100)) == [0, 10, 20]
    assert throttle.suppressed == 2


def test_what_was_left_out_does_not_leave_out_others() -> None:
    throttle = Throttle(10)
    throttle.take([found(0), found(6), found(12)])
    assert times(throttle.release(100)) == [0, 12]


def test_bindings_are_throttled_each_for_itself() -> None:
    throttle = Throttle(10)
    throttle.take([found(0, "1"), found(1, "2"), found(2, "1")])
    assert times(throttle.release(100)) == [0, 1]


def test_what_is_found_late_still_comes_first() -> None:
    throttle = Throttle(10)
    throttle.take([found(7)])
    assert throttle.release(5) == []
    assert throttle.earliest() == 7
    throttle.take([found(5)])
    assert times(throttle.release(8)) == [5]
    assert throttle.suppressed == 1
    assert throttle.earliest() is None


def test_the_same_detection_found_twice_is_one_and_not_left_out() -> None:
    throttle = Throttle(10)
    throttle.take([found(1, "1", "e1"), found(1, "1", "e1"), found(1, "1", "e2")])
    assert [item.causes for item in throttle.release(2)] == [((1, "e1"),)]
    assert throttle.suppressed == 1


def test_it_goes_on_from_a_snapshot_and_forgets_what_no_longer_matters() -> None:
    throttle = Throttle(10)
    for time in range(0, 1_000, 10):
        throttle.take([found(time, str(time))])
        throttle.release(time + 1)
    throttle.take([found(991, "990"), found(995, "x")])
    saved = pack_state(throttle.state())
    assert len(saved) < 200
    other = Throttle(10)
    other.restore(unpack_state(saved), "p", "v")
    assert other.release(2_000) == throttle.release(2_000) == [found(995, "x")]
    assert other.suppressed == throttle.suppressed == 1
