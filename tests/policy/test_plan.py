"""A plan's name stands for exactly that plan, wherever it was made."""

from __future__ import annotations

import pickle

from benchmarks.policy.building import policy
from rapport.policy.plan import decode_plan, encode_plan


def test_a_plan_that_was_sent_to_another_process_keeps_its_version() -> None:
    plan = policy()
    assert pickle.loads(pickle.dumps(plan)).version() == plan.version()
    assert decode_plan(encode_plan(plan)).version() == plan.version()
