"""Makes the step of a term whose occurrences depend on time as well as on readings. [PO-3, PO-6]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.policy.ontology import PushSource
from rapport.policy.plan import LastingTerm, SilentTerm
from rapport.policy.runners.base import PullData
from rapport.policy.runners.operators.identities import Identities
from rapport.policy.runners.operators.lasting import LastingStep
from rapport.policy.runners.operators.silent import SilentStep
from rapport.policy.runners.operators.step import OccurrenceStep


def make_step(
    term: LastingTerm | SilentTerm,
    identities: Mapping[str, Identities],
    pull: PullData,
    sources: Mapping[str, PushSource],
    began: int | None = None,
) -> OccurrenceStep:
    """A step that has seen nothing yet.

    Args:
        began: the policy's start, from which silence counts; None: the first reading it takes.
    """
    if isinstance(term, SilentTerm):
        return SilentStep(term, identities[term.first.concept], sources, began)
    return LastingStep(term, identities, pull, sources)
