"""Open situations of the engine: whatever operators find again, beginnings and ends alternate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection
from rapport.policy.engine.open_situations import OpenSituations

FOUND = st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans()), max_size=40)


@given(FOUND)
def test_each_beginning_has_one_end_that_names_it_across_restarts(found):
    known, emitted = OpenSituations(), []
    for time, (name, is_end, restarts) in enumerate(found, 1):
        one = Detection(
            policy="p",
            time=time,
            bindings={"A": name},
            causes=(),
            began=-1 if is_end else None,
        )
        new = known.continued([one], {"p"})
        known.note(new, {"p"})
        emitted += new
        if restarts:
            known = OpenSituations(known.state())
    open_since: dict[str, int] = {}
    for one in emitted:
        name = one.bindings["A"]
        if one.began is None:
            assert name not in open_since
            open_since[name] = one.time
        else:
            assert open_since.pop(name) == one.began
    assert {each.bindings["A"]: each.began for each in known} == open_since


def test_ends_of_a_stopped_policy_come_after_their_beginning_and_only_once():
    known = OpenSituations()
    known.note([Detection(policy="p", time=9, bindings={"A": "a"}, causes=())], {"p"})
    [ended] = known.end("p", "v2", "the policy was deleted", 9)
    assert (ended.time, ended.began, ended.version) == (10, 9, "v2")
    assert known.end("p", "v2", "the policy was deleted", 9) == []
