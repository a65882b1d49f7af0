"""Columnar operators: each executes one plan on sorted batches of readings."""

from rapport.policy.operators.operator import make_operator
from rapport.policy.operators.plan_shape import check_supported

__all__ = ["check_supported", "make_operator"]
