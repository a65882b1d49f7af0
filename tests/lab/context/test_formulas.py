"""What a simulation must show: networks of real broker machines against theory and the judge."""

import random
from statistics import mean, stdev

import pytest

from rapport_lab.context.formulas import expected_coverage, expected_hops, expected_success
from rapport_lab.context.study import SearchPoint, make_load, make_network, run_load, run_point
from support.judge.naive_search import walk

pytestmark = pytest.mark.slow


def measure(**fields):
    return run_point(SearchPoint(part="test", **fields)).to_pylist()[0]


@pytest.mark.parametrize(
    ("topology", "brokers", "copies"),
    [
        ("mesh", 60, 1),
        pytest.param("mesh", 60, 4, marks=pytest.mark.long),
        pytest.param("regular", 200, 1, marks=pytest.mark.long),
        ("regular", 200, 4),
    ],
)
def test_a_walk_without_limit_needs_about_n_over_r_plus_1_hops(topology, brokers, copies):
    row = measure(
        brokers=brokers, topology=topology, copies=copies, hop_limit=5_000, requests=500, keys=500
    )
    assert row["success"] == 1.0
    assert row["hops_mean"] == pytest.approx(expected_hops(brokers, copies), rel=0.15)


@pytest.mark.parametrize("limit", [20, pytest.param(60, marks=pytest.mark.long)])
def test_success_within_a_hop_limit_is_about_1_minus_the_share_that_misses_every_time(limit):
    row = measure(brokers=300, copies=3, hop_limit=limit, requests=800, keys=800)
    assert row["success"] == pytest.approx(expected_success(300, 3, limit + 1), abs=0.07)


def test_look_ahead_cuts_hops_about_threefold_for_about_the_same_messages():
    plain = measure(brokers=200, copies=3, hop_limit=5_000, requests=400, keys=400)
    ahead = measure(
        brokers=200, copies=3, hop_limit=5_000, requests=400, keys=400, look_ahead="probe"
    )
    assert expected_coverage(4, 1) == 3
    assert 2.0 < plain["hops_mean"] / ahead["hops_mean"] < 4.0
    assert ahead["messages_mean"] == pytest.approx(plain["messages_mean"], rel=0.25)


def test_filters_look_ahead_for_no_messages_of_the_search():
    plain = measure(brokers=100, copies=2, hop_limit=5_000, requests=200)
    bloom = measure(brokers=100, copies=2, hop_limit=5_000, requests=200, look_ahead="bloom")
    assert bloom["probes_mean"] == 0
    assert bloom["hops_mean"] < plain["hops_mean"] / 1.7
    assert bloom["messages_mean"] < plain["messages_mean"] / 1.7


def replicated(**fields):
    return measure(
        brokers=300,
        keys=60,
        popularity="zipf",
        replication="random",
        room=30,
        requests=4_000,
        uncounted=0.5,
        hop_limit=5_000,
        **fields,
    )


@pytest.mark.long
def test_replication_cuts_messages_by_about_two_orders_of_magnitude_under_zipf():
    alone = measure(brokers=300, keys=60, popularity="zipf", requests=200, hop_limit=5_000)
    copied = replicated()
    assert 50 < alone["messages_mean"] / copied["messages_mean"] < 500


@pytest.mark.parametrize(
    ("replicas", "steepness"), [pytest.param(0, 0.4, marks=pytest.mark.long), (1, 0.8)]
)
def test_copies_follow_the_square_root_of_the_rate_with_path_but_not_with_one_copy(
    replicas, steepness
):
    assert replicated(replicas=replicas)["copies_slope"] == pytest.approx(steepness, abs=0.12)


@pytest.mark.parametrize("copies", [pytest.param(1, marks=pytest.mark.long), 5])
def test_machines_walk_as_the_judge_does(copies):
    """The same graph and the same holders; the means differ by less than four standard errors."""
    point = SearchPoint(
        part="test", brokers=80, copies=copies, hop_limit=40, requests=1_000, keys=200, seed=9
    )
    network = make_network(point)
    rows = run_load(network, make_load(point)).table().to_pylist()
    neighbours = [[to[1] for to in machine.neighbours] for machine in network.machines]
    holders = {}
    for number, machine in enumerate(network.machines):
        for held in machine.table.held():
            holders.setdefault(int(held.record.entity.id), set()).add(number)
    chance = random.Random(4)
    judged = [walk(neighbours, holders[row["key"]], row["broker"], 40, chance) for row in rows]
    share, expected = mean(row["found"] for row in rows), mean(each.found for each in judged)
    assert share == pytest.approx(expected, abs=4 * (2 * 0.25 / 1_000) ** 0.5)
    hops = [row["hops"] for row in rows if row["found"]]
    expected_each = [each.hops for each in judged if each.found]
    error = (stdev(hops) ** 2 / len(hops) + stdev(expected_each) ** 2 / len(expected_each)) ** 0.5
    assert mean(hops) == pytest.approx(mean(expected_each), abs=4 * error)


@pytest.mark.parametrize(
    ("topology", "without", "with_avoidance"),
    [
        ("ring", 0.52, 1.0),
        pytest.param("waxman", 0.6, 0.9, marks=pytest.mark.long),
        ("mesh", 0.72, 1.0),
    ],
)
def test_avoiding_visited_brokers_makes_the_difference_that_the_decision_was_taken_for(
    topology, without, with_avoidance
):
    def success(avoid):
        seeds = range(1, 9) if topology == "waxman" else range(1, 3)
        return mean(
            measure(
                brokers=10,
                topology=topology,
                degree=3,
                hop_limit=10,
                avoid=avoid,
                requests=500,
                keys=500,
                seed=seed,
            )["success"]
            for seed in seeds
        )

    assert success(False) == pytest.approx(without, abs=0.08)
    assert success(True) == pytest.approx(with_avoidance, abs=0.08)


@pytest.mark.parametrize(("loss", "least"), [(0.1, 0.99), (0.3, 0.95)])
def test_loss_between_brokers_is_made_good_by_acknowledged_hops(loss, least):
    row = measure(brokers=30, copies=6, requests=600, loss=loss, look_ahead="probe")
    assert row["success"] >= least
