import numpy as np
import pytest

from rapport.core.errors import InvalidInput
from rapport_lab.context.load import Load, plan_homes, plan_requests, plan_updates, popularities


def test_the_same_seed_draws_the_same_load_and_another_seed_another():
    load = Load(requests=50, keys=7)
    first, again = plan_requests(load, 20), plan_requests(load, 20)
    other = plan_requests(Load(requests=50, keys=7, seed=2), 20)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert (first.brokers != other.brokers).any()


def test_requests_come_in_order_at_the_wished_rate_from_all_brokers():
    made = plan_requests(Load(requests=20_000, requests_per_second=500), 10)
    assert (np.diff(made.times_ms) >= 0).all()
    assert made.times_ms[-1] == pytest.approx(40_000, rel=0.01)
    assert np.bincount(made.brokers).min() > 1_800


def test_under_zipf_the_tenth_key_is_asked_for_a_tenth_as_often_as_the_first():
    load = Load(requests=100_000, keys=100, popularity="zipf")
    asked = np.bincount(plan_requests(load, 10).keys, minlength=100)
    assert asked[0] / asked[9] == pytest.approx(10, rel=0.1)
    assert popularities(load).sum() == pytest.approx(1)


def test_consumers_stay_at_their_broker_and_ask_at_a_regular_interval():
    made = plan_requests(Load(requests=300, consumers=10, requests_per_second=100), 50)
    assert (np.diff(made.times_ms) >= 0).all()
    assert (made.brokers[:10] == made.brokers[10:20]).all()
    assert np.diff(made.times_ms[::10]) == pytest.approx(100)


def test_the_copies_of_a_key_lie_at_different_brokers():
    homes = plan_homes(Load(requests=1, keys=40, copies=5), 8)
    assert homes.shape == (40, 5)
    assert all(len(set(row)) == 5 for row in homes.tolist())


def test_each_record_is_put_again_at_its_homes_every_interval():
    load = Load(requests=1, keys=3, copies=2, update_every_ms=100)
    made = plan_updates(load, 9, 1_000)
    homes = plan_homes(load, 9)
    assert (np.diff(made.times_ms) >= 0).all()
    for key in range(3):
        own = made.keys == key
        assert set(made.brokers[own].tolist()) == set(homes[key].tolist())
        assert np.diff(made.times_ms[own][::2]) == pytest.approx(100)
    assert len(plan_updates(Load(requests=1), 9, 1_000).times_ms) == 0


@pytest.mark.parametrize(
    "wrong", [{"popularity": "fame"}, {"keys": 0}, {"copies": 0}, {"requests_per_second": 0}]
)
def test_a_load_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidInput):
        Load(**{"requests": 1, **wrong})


def test_more_copies_than_brokers_are_refused():
    with pytest.raises(InvalidInput, match="do not fit"):
        plan_homes(Load(requests=1, copies=4), 3)
