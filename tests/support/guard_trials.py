"""Random policies with `while` over random sites, for property tests. [SI-9]"""

from __future__ import annotations

import msgspec

from rapport.core.errors import PolicyError
from rapport.policy.compiler.compile import compile_conditions
from rapport.policy.ontology import Ontology
from support.judge.trials import Trial
from support.situation_policies import ZONES, PolicyWriter
from support.situation_worlds import EDGES, attributes_in, varied_world
from support.varied.sites import Draws

WINDOW_MS = 3_000


def varied_guard(draws: Draws) -> Trial:
    """A random policy with `while` over a random site, such that the compiler takes it."""
    edge, zone = draws.choice(EDGES), draws.choice(("Europe/Berlin", *ZONES))
    while True:
        text = PolicyWriter(draws, edge, zone).guarded()
        world = varied_world(
            draws, attributes_in(text), edge=edge, zone=zone, events=30, changing_tables=False
        )
        try:
            compile_conditions(text, name="p", ontology=world.ontology, window_ms=WINDOW_MS)
        except PolicyError:
            continue
        return Trial(
            text=text,
            ontology=_with_a_period(draws, world.ontology),
            pull=world.tables[0].pull,
            readings=world.readings,
            window_ms=WINDOW_MS,
            tables=world.tables,
        )


def _with_a_period(draws: Draws, ontology: Ontology) -> Ontology:
    """Perhaps a source promises readings, so that absence may be undecided."""
    if draws.randint(0, 2):
        return ontology
    name = draws.choice(sorted(ontology.sources))
    promised = msgspec.structs.replace(ontology.sources[name], period_ms=2_000)
    return msgspec.structs.replace(ontology, sources={**ontology.sources, name: promised})
