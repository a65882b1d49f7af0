"""Outcomes of many deliveries say what each says alone. [CO-8]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.adapters.attempts import SentOutcomes, outcome_data, outcomes_data
from rapport.communication.adapters.base import Confirmed, Delivery, Failed, Sent

deliveries = st.builds(
    Delivery,
    message=st.sampled_from(["m1", "m 2"]),
    peer=st.just("ana"),
    address=st.sampled_from(["mail:ana@example.org", "hook:https://u:pw@example.org/x"]),
    attempt=st.integers(1, 3),
    text=st.just("look"),
    plain=st.booleans(),
    case=st.sampled_from(["", "c1"]),
    share=st.sampled_from(["", "3"]),
)
outcomes = st.one_of(
    st.builds(Sent, st.sampled_from(["", "", "ref"])),
    st.builds(Confirmed, st.sampled_from(["", "ref"])),
    st.builds(Failed, st.just("no"), st.booleans()),
)


@given(st.lists(st.tuples(deliveries, outcomes, st.integers(0, 9)), max_size=5))
def test_many_outcomes_are_those_of_each(told):
    together = outcomes_data(*([list(column) for column in zip(*told, strict=True)] or [[]] * 3))
    assert list(together) == [outcome_data(*each) for each in told]


@given(st.lists(st.lists(st.tuples(deliveries, outcomes, st.integers(0, 9)), max_size=4)))
def test_outcomes_reported_together_are_those_of_all_parts(parts):
    made = [
        outcomes_data(*([list(column) for column in zip(*told, strict=True)] or [[]] * 3))
        for told in parts
    ]
    joined = SentOutcomes.joined([part for part in made if part])
    assert list(joined) == [outcome_data(*each) for told in parts for each in told]
    assert list(joined[1:3]) == list(joined)[1:3]
