"""Makes the step of a term whose occurrences depend on time as well as on readings. [PO-3, PO-6]"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial

from rapport.policy.ontology import PushSource
from rapport.policy.plan import LastingTerm, SilentTerm
from rapport.policy.runners.base import PullData
from rapport.policy.runners.operators.common_steps import SharedStepReader
from rapport.policy.runners.operators.identities import Identities
from rapport.policy.runners.operators.lasting import DurationStep
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.silent import SilenceStep
from rapport.policy.runners.operators.step import OccurrenceStep
from rapport.policy.runners.operators.term_sides import is_shareable, renamed, sides_of


def make_step(
    term: LastingTerm | SilentTerm,
    identities: Mapping[str, Identities],
    pull: PullData,
    sources: Mapping[str, PushSource],
    began: int | None = None,
    shared: SharedCache | None = None,
) -> OccurrenceStep:
    """A step that has seen nothing yet.

    Args:
        began: the policy's start, from which silence counts; None: the first reading it takes.
        shared: with whom it is shared, if they have the same.
    """
    key = _key(term, identities, began) if is_shareable(term) else None
    return SharedStepReader(
        key, partial(_make, term, identities, pull, sources, began), shared or SharedCache()
    )


def _key(
    term: LastingTerm | SilentTerm, identities: Mapping[str, Identities], began: int | None
) -> Hashable:
    """What it depends on besides readings and the sources of the site."""
    concepts = sorted({side.concept for side in sides_of(term)})
    since = began if isinstance(term, SilentTerm) else None
    return (SharedStepReader, renamed([term])[0], tuple(identities[one] for one in concepts), since)


def _make(
    term: LastingTerm | SilentTerm,
    identities: Mapping[str, Identities],
    pull: PullData,
    sources: Mapping[str, PushSource],
    began: int | None,
) -> OccurrenceStep:
    if isinstance(term, SilentTerm):
        return SilenceStep(term, identities[term.first.concept], sources, began)
    return DurationStep(term, identities, pull, sources)
