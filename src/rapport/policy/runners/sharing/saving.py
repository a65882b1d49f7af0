"""A group of plans as it is saved, and begun again from that. [PO-8, PO-13]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.policy.plan import Plan
from rapport.policy.runners.operators.operator import saved_identities
from rapport.policy.runners.operators.state import unpack_state
from rapport.policy.runners.sharing.family import OperatorContext
from rapport.policy.runners.sharing.groups import (
    BEGIN_OF_TIME,
    PlanGroup,
    start_alone,
    start_family,
)
from rapport.policy.runners.sharing.saved import SavedGroup


def saved_group(group: PlanGroup, versions: Mapping[str, str]) -> SavedGroup:
    """What `restored_group` takes; `versions`: of all plans."""
    own = {name: versions[name] for name in group.plans}
    saved = SavedGroup(own, group.operator.snapshot(), group.began)
    if group.family is not None:
        saved.slot, saved.bounds = group.family.slot, group.family.bounds
    return saved


def restored_group(
    saved: SavedGroup, plans: list[Plan], around: OperatorContext, since: int | None, watermark: int
) -> PlanGroup:
    """Goes on with those of its plans. `since`: from when silence counts where it began before the
    first reading.
    """
    began = saved.began if saved.began > BEGIN_OF_TIME else since
    state = unpack_state(saved.state)
    ids = saved_identities(state)
    if saved.slot is None:
        group = start_alone(plans[0], around, began, saved.began, ids)
    else:
        bounds = saved.bounds
        group = start_family(saved.slot, plans, around, began, saved.began, bounds, ids)
    group.operator.take_over(state, watermark)
    return group
