"""When jobs that nobody does are given up."""

from __future__ import annotations

import socket

from rapport.pipeline.session import ClusterWatch, answers


def test_work_that_is_being_done_is_never_given_up() -> None:
    patience = ClusterWatch()
    for now in range(0, 10_000_000, 100_000):
        assert patience.look(now, jobs=1, tasks=1, master_answers=False) is None
        assert patience.look(now, jobs=0, tasks=0, master_answers=False) is None


def test_a_cluster_that_has_gone_is_given_up_soon() -> None:
    patience = ClusterWatch()
    assert patience.look(0, jobs=1, tasks=0, master_answers=False) is None
    assert patience.look(19_999, jobs=1, tasks=0, master_answers=False) is None
    reason = patience.look(20_000, jobs=1, tasks=0, master_answers=False)
    assert reason is not None
    assert reason[0] == "spark.cluster_lost"


def test_a_cluster_without_workers_is_waited_for_longer() -> None:
    patience = ClusterWatch()
    assert patience.look(0, jobs=1, tasks=0, master_answers=True) is None
    assert patience.look(89_999, jobs=1, tasks=0, master_answers=True) is None
    reason = patience.look(90_000, jobs=1, tasks=0, master_answers=True)
    assert reason is not None
    assert reason[0] == "spark.no_workers"


def test_a_worker_that_comes_back_ends_the_waiting() -> None:
    patience = ClusterWatch()
    patience.look(0, jobs=1, tasks=0, master_answers=False)
    patience.look(19_000, jobs=1, tasks=2, master_answers=False)
    assert patience.look(30_000, jobs=1, tasks=0, master_answers=False) is None


def test_one_of_several_addresses_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert answers(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    assert not answers("spark://127.0.0.1:1")
